#include "tests/conformance/family.h"

#include <gtest/gtest.h>

#include <utility>

namespace hora::test {
namespace {

constexpr std::int64_t kRows = 12;  ///< divisible by 1, 2, 3 and 4 ranks

using Values = std::vector<float>;

Values ones() {
  return Values(kRows, 1.0F);
}

/// The set's ranks have brought ones.
void expect_all(const Member& me, const Result& result, std::int64_t rows, float value) {
  ASSERT_EQ(result.shape(), Shape{rows});
  for (const float element : elements_of<float>(me, result)) EXPECT_EQ(element, value);
}

Family allreduce_family() {
  return {"allreduce",
          [](const Member& me, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return allreduce_async(me.context, tensor,
                                   {.name = name, .op = ReduceOp::sum, .process_set = set});
          },
          [](const Member& me, const std::string& name, ProcessSet set) {
            Values values = ones();
            allreduce(me.context, me.placed(values),
                      {.name = name, .op = ReduceOp::sum, .process_set = set});
            EXPECT_EQ(values, Values(kRows, static_cast<float>(size_of(me.context, set))));
          }};
}

/// From the world's rank 0, or the set's first: its number alone comes from ranks_of(), which
/// refuses sets that do not exist as the collective itself does.
Family broadcast_family() {
  const auto options = [](const Context& world, const std::string& name, ProcessSet set) {
    return BroadcastOptions{.name = name, .root = ranks_of(world, set).front(), .process_set = set};
  };
  return {"broadcast",
          [=](const Member& me, const Placed& tensor, const std::string& name,
              ProcessSet set) -> AnyHandle {
            return broadcast_async(me.context, tensor, options(me.context, name, set));
          },
          [=](const Member& me, const std::string& name, ProcessSet set) {
            const BroadcastOptions chosen = options(me.context, name, set);
            Values values(kRows, static_cast<float>(me.context.rank()));
            broadcast(me.context, me.placed(values), chosen);
            EXPECT_EQ(values, Values(kRows, static_cast<float>(chosen.root)));
          }};
}

Family barrier_family() {
  return {
      "barrier",
      [](const Member& me, const Placed&, const std::string& name, ProcessSet set) -> AnyHandle {
        return barrier_async(me.context, {.name = name, .process_set = set});
      },
      [](const Member& me, const std::string& name, ProcessSet set) {
        barrier(me.context, {.name = name, .process_set = set});
      }};
}

Family allgather_family() {
  return {"allgather",
          [](const Member& me, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return allgather_async(me.context, tensor, {.name = name, .process_set = set});
          },
          [](const Member& me, const std::string& name, ProcessSet set) {
            Values values = ones();
            expect_all(me,
                       allgather(me.context, me.placed(values), {.name = name, .process_set = set}),
                       kRows * size_of(me.context, set), 1.0F);
          }};
}

Family alltoall_family() {
  return {"alltoall",
          [](const Member& me, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return alltoall_async(me.context, tensor, {.name = name, .process_set = set});
          },
          [](const Member& me, const std::string& name, ProcessSet set) {
            Values values = ones();
            expect_all(me,
                       alltoall(me.context, me.placed(values), {.name = name, .process_set = set}),
                       kRows, 1.0F);
          }};
}

Family reduce_scatter_family() {
  const auto options = [](const std::string& name, ProcessSet set) {
    return ReduceScatterOptions{.name = name, .op = ReduceOp::sum, .process_set = set};
  };
  return {"reduce_scatter",
          [=](const Member& me, const Placed& tensor, const std::string& name, ProcessSet set)
              -> AnyHandle { return reduce_scatter_async(me.context, tensor, options(name, set)); },
          [=](const Member& me, const std::string& name, ProcessSet set) {
            Values values = ones();
            const Result result = reduce_scatter(me.context, me.placed(values), options(name, set));
            const int size = size_of(me.context, set);
            expect_all(me, result, kRows / size, static_cast<float>(size));
          }};
}

}  // namespace

Started start(const Family& family, const Member& me, const std::string& name, ProcessSet set) {
  Started started{ones(), {}, {}};
  started.tensor = me.placed(started.values);
  started.handle = family.start(me, started.tensor, name, set);
  return started;
}

void wait(Started& started) {
  std::visit([](auto& one) { (void)one.wait(); }, started.handle);
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {allreduce_family(), broadcast_family(),
                                          barrier_family(),   allgather_family(),
                                          alltoall_family(),  reduce_scatter_family()};
  return all;
}

}  // namespace hora::test
