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

/// Sums, from the world's rank 0, or the set's first: its number alone comes from ranks_of(), which
/// refuses sets that do not exist as the collective itself does.
template <class Options>
Options options_of(const Context& world, const std::string& name, ProcessSet set) {
  Options options;
  options.name = name;
  options.process_set = set;
  if constexpr (requires { options.op; }) options.op = ReduceOp::sum;
  if constexpr (requires { options.root; }) options.root = ranks_of(world, set).front();
  return options;
}

/// `run(member, twelve ones, options)` waits for the collective, and checks its result.
template <class Options, class Start, class Run>
Family family(const char* name, Start start, Run run) {
  return {name,
          [=](const Member& member, const Placed& tensor, const std::string& of,
              ProcessSet set) -> AnyHandle {
            return start(member.context, tensor, options_of<Options>(member.context, of, set));
          },
          [=](const Member& member, const std::string& of, ProcessSet set) {
            Floats values = ones();
            run(member, values, options_of<Options>(member.context, of, set));
          }};
}

std::vector<Family> make_families() {
  return {family<AllreduceOptions>(
              "allreduce", [](const auto&... given) { return allreduce_async(given...); },
              [](const Member& me, Floats& values, const AllreduceOptions& options) {
                allreduce(me.context, me.placed(values), options);
                const int size = size_of(me.context, options.process_set);
                EXPECT_EQ(values, Floats(kRows, static_cast<float>(size)));
              }),
          family<BroadcastOptions>(
              "broadcast", [](const auto&... given) { return broadcast_async(given...); },
              [](const Member& me, Floats& values, const BroadcastOptions& options) {
                values.assign(kRows, static_cast<float>(me.context.rank()));
                broadcast(me.context, me.placed(values), options);
                EXPECT_EQ(values, Floats(kRows, static_cast<float>(options.root)));
              }),
          family<BarrierOptions>(
              "barrier",
              [](const Context& world, const Placed&, const BarrierOptions& options) {
                return barrier_async(world, options);
              },
              [](const Member& me, const Floats&, const BarrierOptions& options) {
                barrier(me.context, options);
              }),
          family<AllgatherOptions>(
              "allgather", [](const auto&... given) { return allgather_async(given...); },
              [](const Member& me, Floats& values, const AllgatherOptions& options) {
                const Result all = allgather(me.context, me.placed(values), options);
                expect_all(me, all, kRows * size_of(me.context, options.process_set), 1.0F);
              }),
          family<AlltoallOptions>(
              "alltoall", [](const auto&... given) { return alltoall_async(given...); },
              [](const Member& me, Floats& values, const AlltoallOptions& options) {
                expect_all(me, alltoall(me.context, me.placed(values), options), kRows, 1.0F);
              }),
          family<ReduceScatterOptions>(
              "reduce_scatter", [](const auto&... given) { return reduce_scatter_async(given...); },
              [](const Member& me, Floats& values, const ReduceScatterOptions& options) {
                const Result own = reduce_scatter(me.context, me.placed(values), options);
                const int size = size_of(me.context, options.process_set);
                expect_all(me, own, kRows / size, static_cast<float>(size));
              })};
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
  static const std::vector<Family> all = make_families();
  return all;
}

}  // namespace hora::internal::test
