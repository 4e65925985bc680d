#include "tests/conformance/family.h"

#include <gtest/gtest.h>

#include <utility>

namespace hora::internal::test {
namespace {

constexpr std::int64_t kRows = 12;  ///< divisible by 1, 2, 3 and 4 ranks

using Floats = std::vector<float>;

Floats ones() {
  return Floats(kRows, 1.0F);
}

/// The set's ranks have brought ones.
void expect_all(const Member& member, const Result& result, std::int64_t rows, float value) {
  ASSERT_EQ(result.shape(), Shape{rows});
  for (const float element : elements_of<float>(member, result)) EXPECT_EQ(element, value);
}

Family allreduce_family() {
  return {"allreduce",
          [](const Member& member, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return allreduce_async(member.context, tensor,
                                   {.name = name, .op = ReduceOp::sum, .process_set = set});
          },
          [](const Member& member, const std::string& name, ProcessSet set) {
            Floats values = ones();
            allreduce(member.context, member.placed(values),
                      {.name = name, .op = ReduceOp::sum, .process_set = set});
            EXPECT_EQ(values, Floats(kRows, static_cast<float>(size_of(member.context, set))));
          }};
}

/// From the world's rank 0, or the set's first: its number alone comes from ranks_of(), which
/// refuses sets that do not exist as the collective itself does.
Family broadcast_family() {
  const auto options = [](const Context& world, const std::string& name, ProcessSet set) {
    return BroadcastOptions{.name = name, .root = ranks_of(world, set).front(), .process_set = set};
  };
  return {"broadcast",
          [=](const Member& member, const Placed& tensor, const std::string& name,
              ProcessSet set) -> AnyHandle {
            return broadcast_async(member.context, tensor, options(member.context, name, set));
          },
          [=](const Member& member, const std::string& name, ProcessSet set) {
            const BroadcastOptions chosen = options(member.context, name, set);
            Floats values(kRows, static_cast<float>(member.context.rank()));
            broadcast(member.context, member.placed(values), chosen);
            EXPECT_EQ(values, Floats(kRows, static_cast<float>(chosen.root)));
          }};
}

Family barrier_family() {
  return {"barrier",
          [](const Member& member, const Placed&, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return barrier_async(member.context, {.name = name, .process_set = set});
          },
          [](const Member& member, const std::string& name, ProcessSet set) {
            barrier(member.context, {.name = name, .process_set = set});
          }};
}

Family allgather_family() {
  return {"allgather",
          [](const Member& member, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return allgather_async(member.context, tensor, {.name = name, .process_set = set});
          },
          [](const Member& member, const std::string& name, ProcessSet set) {
            Floats values = ones();
            expect_all(member,
                       allgather(member.context, member.placed(values),
                                 {.name = name, .process_set = set}),
                       kRows * size_of(member.context, set), 1.0F);
          }};
}

Family alltoall_family() {
  return {"alltoall",
          [](const Member& member, const Placed& tensor, const std::string& name,
             ProcessSet set) -> AnyHandle {
            return alltoall_async(member.context, tensor, {.name = name, .process_set = set});
          },
          [](const Member& member, const std::string& name, ProcessSet set) {
            Floats values = ones();
            expect_all(
                member,
                alltoall(member.context, member.placed(values), {.name = name, .process_set = set}),
                kRows, 1.0F);
          }};
}

Family reduce_scatter_family() {
  const auto options = [](const std::string& name, ProcessSet set) {
    return ReduceScatterOptions{.name = name, .op = ReduceOp::sum, .process_set = set};
  };
  return {"reduce_scatter",
          [=](const Member& member, const Placed& tensor, const std::string& name,
              ProcessSet set) -> AnyHandle {
            return reduce_scatter_async(member.context, tensor, options(name, set));
          },
          [=](const Member& member, const std::string& name, ProcessSet set) {
            Floats values = ones();
            const Result result =
                reduce_scatter(member.context, member.placed(values), options(name, set));
            const int size = size_of(member.context, set);
            expect_all(member, result, kRows / size, static_cast<float>(size));
          }};
}

}  // namespace

Started start(const Family& family, const Member& member, const std::string& name, ProcessSet set) {
  Started started{ones(), {}, {}};
  started.tensor = member.placed(started.values);
  started.handle = family.start(member, started.tensor, name, set);
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

}  // namespace hora::internal::test
