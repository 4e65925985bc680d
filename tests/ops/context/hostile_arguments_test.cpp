// Arguments that can never be right, of every public call: each is refused at once, on the rank
// that gives it, and what comes next works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <hora/objects.h>
#include <hora/printable.h>

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/base/text.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

constexpr ProcessSet kLastSet(std::numeric_limits<std::uint32_t>::max());
constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

struct Case {
  std::string what;
  std::function<void()> call;
  std::string tensor = {};  ///< whose error it is, where not empty
};
using Cases = std::vector<Case>;

class HostileArguments : public testing::Test {
 protected:
  /// No agreement takes place: one rank tries, the others go on to the next collective.
  void expect_refused(const Cases& cases) {
    for (const Case& each : cases) {
      if (world_.rank() == 0) {
        SCOPED_TRACE(each.what);
        const Error error = expect_error(ErrorCode::invalid_argument, each.call);
        EXPECT_LT(std::string(error.what()).size(), 3000u);
        EXPECT_LT(error.tensor().size(), 3000u);
        EXPECT_THAT(printable(error.tensor()), testing::Not(testing::HasSubstr("\\xc3")));
        if (!each.tensor.empty()) {
          EXPECT_EQ(error.tensor(), each.tensor);
          EXPECT_THAT(error.what(), testing::HasSubstr(tensor_text(each.tensor)));
        }
      }
      expect_next_works();
    }
  }
  void expect_next_works() {
    float value = 1;
    allreduce(world_, view(&value, 1), {.name = "next", .op = ReduceOp::sum});
    ASSERT_EQ(value, static_cast<float>(world_.size()));
  }

  const Context world_ = init();
  std::vector<float> memory_ = std::vector<float>(64);
};

TensorView shaped(void* data, Shape shape, DataType type = DataType::float32) {
  return {data, type, std::move(shape), {}};
}

struct HostileTensor {
  std::string what;
  TensorView tensor;
};

std::vector<HostileTensor> hostile_tensors(void* data) {
  TensorView device_kind = shaped(data, {2});
  device_kind.device = {static_cast<DeviceKind>(9), 0};
  TensorView gpu = shaped(data, {2});
  gpu.device = {DeviceKind::cuda, std::numeric_limits<int>::min()};
  TensorView cpu = shaped(data, {2});
  cpu.device = {DeviceKind::cpu, 3};
  return {
      {"null", shaped(nullptr, {2})},
      {"negative", shaped(data, {-1})},
      {"negative row", shaped(data, {2, -3})},
      {"negative beside none", shaped(data, {0, -3})},
      {"2^62 bytes", shaped(data, {kHuge}, DataType::uint8)},
      {"most bytes", shaped(data, {kMost}, DataType::uint8)},
      {"more than can be addressed", shaped(data, {(std::int64_t{1} << 48) + 1}, DataType::uint8)},
      {"wraps to 0", shaped(data, {std::int64_t{1} << 32, std::int64_t{1} << 32})},
      {"rows wrap where there are none", shaped(data, {0, kHuge, 4})},
      {"wraps with the type's size", shaped(data, {kHuge}, DataType::float64)},
      {"type 99", shaped(data, {2}, static_cast<DataType>(99))},
      {"type 255, no elements", shaped(data, {0}, static_cast<DataType>(255))},
      {"65 dimensions", shaped(data, Shape(65, 1))},
      {"a million dimensions", shaped(data, Shape(1000000, 1))},
      {"device kind 9", device_kind},
      {"a device that is none", gpu},
      {"CPU 3", cpu},
  };
}

/// Both ways to submit.
template <class Options, class Blocking, class Async>
void add(Cases& cases, const std::string& what, const Context& world, const TensorView& tensor,
         const Options& options, Blocking blocking, Async async) {
  const std::string name = options.name == "x" ? "x" : "";
  cases.push_back({what, [=, &world] { (void)blocking(world, tensor, options); }, name});
  cases.push_back({what + ", async", [=, &world] { (void)async(world, tensor, options); }, name});
}

/// Calls one collective: `options` with each thing wrong that all collectives can have wrong.
template <class Options, class Blocking, class Async>
Cases cases_of(const Context& world, void* data, const Options& good, Blocking blocking,
               Async async) {
  Cases cases;
  for (const HostileTensor& hostile : hostile_tensors(data)) {
    add(cases, hostile.what, world, hostile.tensor, good, blocking, async);
  }
  const auto with = [&](const std::string& what, auto&& change) {
    Options options = good;
    change(options);
    add(cases, what, world, shaped(data, {4}), options, blocking, async);
  };
  with("a name of 10 MB", [](Options& o) { o.name.assign(10000000, 'x'); });
  with("a name of 1025 bytes", [](Options& o) { o.name.assign(1025, 'x'); });
  with("with a character across the limit",
       [](Options& o) { o.name = std::string(1023, 'x') + "ö"; });
  with("a name with a zero byte", [](Options& o) { o.name = std::string("a\0b", 3); });
  with("set 7", [](Options& o) { o.process_set = ProcessSet(7); });
  with("a negative timeout", [](Options& o) { o.timeout = std::chrono::milliseconds(-1); });
  with("the last set", [](Options& o) { o.process_set = kLastSet; });
  return cases;
}

#define HORA_BOTH(call)                                                               \
  [](const Context& c, const TensorView& t, const auto& o) { return call(c, t, o); }, \
      [](const Context& c, const TensorView& t, const auto& o) { return call##_async(c, t, o); }

/// Arguments that only reductions have.
template <class Options, class Blocking, class Async>
void add_reductions(Cases& cases, const Context& world, void* data, const Options& good,
                    Blocking blocking, Async async) {
  const auto with = [&](const std::string& what, DataType type, auto&& change) {
    Options options = good;
    change(options);
    add(cases, what, world, shaped(data, {4}, type), options, blocking, async);
  };
  const auto floats = DataType::float32;
  with("op 6", floats, [](Options& o) { o.op = static_cast<ReduceOp>(6); });
  with("op 77", floats, [](Options& o) { o.op = static_cast<ReduceOp>(77); });
  with("op 255 of integers", DataType::int32,
       [](Options& o) { o.op = static_cast<ReduceOp>(255); });
  with("average of unsigned integers", DataType::uint64,
       [](Options& o) { o.op = ReduceOp::average; });
}

TEST_F(HostileArguments, Allreduce) {
  const AllreduceOptions good{.name = "x", .op = ReduceOp::sum};
  Cases cases = cases_of(world_, memory_.data(), good, HORA_BOTH(allreduce));
  add_reductions(cases, world_, memory_.data(), good, HORA_BOTH(allreduce));
  expect_refused(cases);
}

TEST_F(HostileArguments, ReduceScatter) {
  const ReduceScatterOptions good{.name = "x", .op = ReduceOp::sum};
  Cases cases = cases_of(world_, memory_.data(), good, HORA_BOTH(reduce_scatter));
  add_reductions(cases, world_, memory_.data(), good, HORA_BOTH(reduce_scatter));
  add(cases, "a scalar", world_, shaped(memory_.data(), {}), good, HORA_BOTH(reduce_scatter));
  expect_refused(cases);
}

TEST_F(HostileArguments, Broadcast) {
  const BroadcastOptions good{.name = "x"};
  Cases cases = cases_of(world_, memory_.data(), good, HORA_BOTH(broadcast));
  for (const int root :
       {-1, world_.size(), std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    add(cases, "root " + std::to_string(root), world_, shaped(memory_.data(), {4}),
        BroadcastOptions{.name = "x", .root = root}, HORA_BOTH(broadcast));
  }
  expect_refused(cases);
}

TEST_F(HostileArguments, Allgather) {
  expect_refused(
      cases_of(world_, memory_.data(), AllgatherOptions{.name = "x"}, HORA_BOTH(allgather)));
}

// Splits of two ranks that wrap; others are in tests/conformance.
TEST_F(HostileArguments, Alltoall) {
  const AlltoallOptions good{.name = "x", .splits = {4, 0}};
  Cases cases = cases_of(world_, memory_.data(), good, HORA_BOTH(alltoall));
  for (const auto& splits :
       std::vector<std::vector<std::int64_t>>{std::vector<std::int64_t>(1000000, 0),
                                              {std::numeric_limits<std::int64_t>::min(), 4},
                                              {kHuge, 4 - kHuge},
                                              {kMost, 5},
                                              {kMost, kMost}}) {
    add(cases, "splits from " + std::to_string(splits.front()), world_, shaped(memory_.data(), {4}),
        AlltoallOptions{.name = "x", .splits = splits}, HORA_BOTH(alltoall));
  }
  add(cases, "a scalar", world_, shaped(memory_.data(), {}), good, HORA_BOTH(alltoall));
  expect_refused(cases);
}

TEST_F(HostileArguments, Barrier) {
  Cases cases;
  for (const BarrierOptions& options : {BarrierOptions{.timeout = std::chrono::milliseconds(-1)},
                                        BarrierOptions{.name = std::string(10000000, 'x')},
                                        BarrierOptions{.name = std::string("\0", 1)},
                                        BarrierOptions{.process_set = ProcessSet(9)}}) {
    cases.push_back({"barrier", [=, this] { barrier(world_, options); }});
    cases.push_back({"barrier_async", [=, this] { (void)barrier_async(world_, options); }});
  }
  expect_refused(cases);
}

TEST_F(HostileArguments, ProcessSets) {
  const int size = world_.size();
  Cases cases;
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{},
                                     {-1},
                                     {size},
                                     {0, 0},
                                     {std::numeric_limits<int>::max()},
                                     {std::numeric_limits<int>::min(), 0},
                                     std::vector<int>(1000000, 0)}) {
    cases.push_back({"add_process_set", [=, this] { add_process_set(world_, ranks); }});
  }
  for (const ProcessSet set : {kWorld, ProcessSet(1), kLastSet}) {
    cases.push_back({"remove_process_set", [=, this] { remove_process_set(world_, set); }});
    if (set == kWorld) continue;
    cases.push_back({"join", [=, this] { join(world_, set); }});
    cases.push_back({"ranks_of", [=, this] { (void)ranks_of(world_, set); }});
    cases.push_back({"rank_in", [=, this] { (void)rank_in(world_, set); }});
    cases.push_back({"size_of", [=, this] { (void)size_of(world_, set); }});
  }
  expect_refused(cases);
}

TEST_F(HostileArguments, Objects) {
  const auto bytes = [](const void* data, std::size_t size) {
    return std::span(static_cast<const std::byte*>(data), size);
  };
  const std::string name(10000000, 'x');
  Cases cases;
  for (const auto& object :
       {bytes(nullptr, 5), bytes(memory_.data(), SIZE_MAX), bytes(memory_.data(), SIZE_MAX / 2),
        bytes(memory_.data(), (std::size_t{1} << 48) + 1)}) {
    const std::string what = std::to_string(object.size()) + " bytes";
    cases.push_back({what, [=, this] { broadcast_object(world_, object, {.name = "x"}); }});
    cases.push_back({what, [=, this] { allgather_object(world_, object, {.name = "x"}); }});
  }
  for (const std::string& bad : {name, std::string(1018, 'x'), std::string("a\0b", 3)}) {
    cases.push_back({"a name", [=, this] { broadcast_object(world_, "text", {.name = bad}); }});
    cases.push_back({"a name", [=, this] { allgather_object(world_, "text", {.name = bad}); }});
  }
  for (const int root : {-1, world_.size(), std::numeric_limits<int>::min()}) {
    cases.push_back({"a root", [=, this] { broadcast_object(world_, "text", {.root = root}); }});
  }
  cases.push_back(
      {"a set", [&] { broadcast_object(world_, "text", {.process_set = ProcessSet(7)}); }});
  cases.push_back(
      {"a set", [&] { allgather_object(world_, "text", {.process_set = ProcessSet(7)}); }});
  expect_refused(cases);
}

TEST_F(HostileArguments, Buffers) {
  Cases cases;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX - 63, SIZE_MAX - 4096,
                                  SIZE_MAX - 3 * 4096, SIZE_MAX / 2, (std::size_t{1} << 48) + 1}) {
    cases.push_back({std::to_string(bytes) + " bytes", [=, this] { Buffer(world_, bytes); }});
  }
  for (const Device& device :
       {Device{DeviceKind::cuda, -1}, Device{DeviceKind::cuda, std::numeric_limits<int>::max()},
        Device{static_cast<DeviceKind>(9), 0}, Device{DeviceKind::cpu, 3}}) {
    cases.push_back({"a device", [=, this] { Buffer(world_, 64, device); }});
  }
  expect_refused(cases);
}

TEST_F(HostileArguments, ABufferOfMoreThanThereIsIsOutOfMemory) {
  for (const std::size_t bytes : {std::size_t{1} << 48, std::size_t{1} << 46}) {
    expect_error(ErrorCode::out_of_memory, [&] { Buffer(world_, bytes); });
    expect_next_works();
  }
}

TEST_F(HostileArguments, Nodes) {
  Cases cases;
  for (const int node : {-1, world_.cross_size(), std::numeric_limits<int>::max()}) {
    cases.push_back({"a node", [=, this] { (void)world_.ranks_of_node(node); }});
  }
  expect_refused(cases);
}

}  // namespace
}  // namespace hora::internal::test
