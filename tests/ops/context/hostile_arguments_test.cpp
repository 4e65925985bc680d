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
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

constexpr ProcessSet kLastSet(std::numeric_limits<std::uint32_t>::max());
constexpr std::int64_t kHuge = std::int64_t{1} << 62;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr int kMostInt = std::numeric_limits<int>::max(),
              kLeastInt = std::numeric_limits<int>::min();

/// Either way to submit, by the options' type.
#define HORA_SUBMIT(call, Options)                                                            \
  void submit(const Context& world, const TensorView& tensor, const Options& o, bool async) { \
    async ? (void)call##_async(world, tensor, o) : (void)call(world, tensor, o);              \
  }
HORA_SUBMIT(allreduce, AllreduceOptions)
HORA_SUBMIT(reduce_scatter, ReduceScatterOptions)
HORA_SUBMIT(broadcast, BroadcastOptions)
HORA_SUBMIT(allgather, AllgatherOptions)
HORA_SUBMIT(alltoall, AlltoallOptions)

class HostileArguments : public testing::Test {
 protected:
  /// No agreement takes place: one rank tries, the others go on to the next collective. `tensor`:
  /// whose error it is, where not empty.
  void refuse(const std::string& what, const std::function<void()>& call,
              const std::string& tensor = "") {
    if (world_.rank() == 0) {
      SCOPED_TRACE(what);
      const Error error = expect_error(ErrorCode::invalid_argument, call);
      EXPECT_LT(std::string(error.what()).size(), 3000u);
      EXPECT_LT(error.tensor().size(), 3000u);
      EXPECT_THAT(printable(error.tensor()), testing::Not(testing::HasSubstr("\\xc3")));
      if (!tensor.empty()) {
        EXPECT_EQ(error.tensor(), tensor);
        EXPECT_THAT(error.what(), testing::HasSubstr(tensor_text(tensor)));
      }
    }
    expect_next_works();
  }
  void expect_next_works() {
    float value = 1;
    allreduce(world_, view(&value, 1), {.name = "next", .op = ReduceOp::sum});
    ASSERT_EQ(value, static_cast<float>(world_.size()));
  }
  TensorView shaped(Shape shape, DataType type = DataType::float32) {
    return {memory_.data(), type, std::move(shape), {}};
  }

  /// Both ways to submit.
  template <class Options>
  void refuse(const std::string& what, const TensorView& tensor, const Options& options) {
    for (const bool async : {false, true}) {
      refuse(
          what + (async ? ", async" : ""), [&] { submit(world_, tensor, options, async); },
          options.name == "x" ? "x" : "");
    }
  }
  /// Each thing wrong that all collectives can have wrong; else `good`.
  template <class Options>
  void refuse_all(const Options& good) {
    for (const auto& [what, tensor] : hostile_tensors()) refuse(what, tensor, good);
    const auto with = [&](const std::string& what, auto Options::*member, auto value) {
      Options options = good;
      options.*member = value;
      refuse(what, shaped({4}), options);
    };
    with("a name of 10 MB", &Options::name, std::string(10000000, 'x'));
    with("a name of 1025 bytes", &Options::name, std::string(1025, 'x'));
    with("with a character across the limit", &Options::name, std::string(1023, 'x') + "ö");
    with("a name with a zero byte", &Options::name, std::string("a\0b", 3));
    with("set 7", &Options::process_set, ProcessSet(7));
    with("the last set", &Options::process_set, kLastSet);
    with("a negative timeout", &Options::timeout, std::chrono::milliseconds(-1));
  }
  /// And what only reductions can.
  template <class Options>
  void refuse_reductions() {
    refuse_all(Options{.name = "x", .op = ReduceOp::sum});
    for (const auto& [op, type] : {std::pair{static_cast<ReduceOp>(6), DataType::float32},
                                   {static_cast<ReduceOp>(77), DataType::float32},
                                   {static_cast<ReduceOp>(255), DataType::int32},
                                   {ReduceOp::average, DataType::uint64}}) {
      refuse("op " + std::to_string(static_cast<int>(op)), shaped({4}, type),
             Options{.name = "x", .op = op});
    }
  }

  const Context world_ = init();
  std::vector<float> memory_ = std::vector<float>(64);

 private:
  std::vector<std::pair<std::string, TensorView>> hostile_tensors() {
    const auto on = [&](DeviceKind kind, int index) {
      TensorView tensor = shaped({2});
      tensor.device = {kind, index};
      return tensor;
    };
    return {
        {"null", {nullptr, DataType::float32, {2}, {}}},
        {"negative", shaped({-1})},
        {"negative row", shaped({2, -3})},
        {"negative beside none", shaped({0, -3})},
        {"2^62 bytes", shaped({kHuge}, DataType::uint8)},
        {"most bytes", shaped({kMost}, DataType::uint8)},
        {"more than can be addressed", shaped({(std::int64_t{1} << 48) + 1}, DataType::uint8)},
        {"wraps to 0", shaped({std::int64_t{1} << 32, std::int64_t{1} << 32})},
        {"rows wrap where there are none", shaped({0, kHuge, 4})},
        {"wraps with the type's size", shaped({kHuge}, DataType::float64)},
        {"type 99", shaped({2}, static_cast<DataType>(99))},
        {"type 255, no elements", shaped({0}, static_cast<DataType>(255))},
        {"65 dimensions", shaped(Shape(65, 1))},
        {"a million dimensions", shaped(Shape(1000000, 1))},
        {"device kind 9", on(static_cast<DeviceKind>(9), 0)},
        {"a device that is none", on(DeviceKind::cuda, kLeastInt)},
        {"CPU 3", on(DeviceKind::cpu, 3)},
    };
  }
};

TEST_F(HostileArguments, Reductions) {
  refuse_reductions<AllreduceOptions>();
  refuse_reductions<ReduceScatterOptions>();
  refuse("a scalar", shaped({}), ReduceScatterOptions{.name = "x", .op = ReduceOp::sum});
}

TEST_F(HostileArguments, BroadcastAndAllgather) {
  refuse_all(AllgatherOptions{.name = "x"});
  refuse_all(BroadcastOptions{.name = "x"});
  for (const int root : {-1, world_.size(), kMostInt, kLeastInt}) {
    refuse("root " + std::to_string(root), shaped({4}),
           BroadcastOptions{.name = "x", .root = root});
  }
}

// Splits of two ranks that wrap; others are in tests/conformance.
TEST_F(HostileArguments, Alltoall) {
  const AlltoallOptions good{.name = "x", .splits = {4, 0}};
  refuse_all(good);
  refuse("a scalar", shaped({}), good);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const std::vector<std::vector<std::int64_t>> wrong = {std::vector<std::int64_t>(1000000, 0),
                                                        {kLeast, 4},
                                                        {kHuge, 4 - kHuge},
                                                        {kMost, 5},
                                                        {kMost, kMost}};
  for (const auto& splits : wrong) {
    refuse("splits from " + std::to_string(splits.front()), shaped({4}),
           AlltoallOptions{.name = "x", .splits = splits});
  }
}

TEST_F(HostileArguments, Barrier) {
  for (const BarrierOptions& options : {BarrierOptions{.timeout = std::chrono::milliseconds(-1)},
                                        BarrierOptions{.name = std::string(10000000, 'x')},
                                        BarrierOptions{.name = std::string("\0", 1)},
                                        BarrierOptions{.process_set = ProcessSet(9)}}) {
    refuse("barrier", [&] { barrier(world_, options); });
    refuse("barrier_async", [&] { (void)barrier_async(world_, options); });
  }
}

TEST_F(HostileArguments, ProcessSets) {
  const std::vector<std::vector<int>> wrong = {
      {}, {-1}, {world_.size()}, {0, 0}, {kMostInt}, {kLeastInt, 0}, std::vector(1000000, 0)};
  for (const auto& ranks : wrong) {
    refuse("add_process_set", [&] { add_process_set(world_, ranks); });
  }
  for (const ProcessSet set : {kWorld, ProcessSet(1), kLastSet}) {
    refuse("remove_process_set", [&] { remove_process_set(world_, set); });
    if (set == kWorld) continue;
    refuse("join", [&] { join(world_, set); });
    refuse("ranks_of", [&] { (void)ranks_of(world_, set); });
    refuse("rank_in", [&] { (void)rank_in(world_, set); });
    refuse("size_of", [&] { (void)size_of(world_, set); });
  }
}

TEST_F(HostileArguments, Objects) {
  const auto refuse_both = [&](const std::string& what, const auto& object, const std::string& name,
                               ProcessSet set = kWorld) {
    refuse(what, [&] { broadcast_object(world_, object, {.name = name, .process_set = set}); });
    refuse(what, [&] { allgather_object(world_, object, {.name = name, .process_set = set}); });
  };
  const std::string text = "text";
  const auto* const data = reinterpret_cast<const std::byte*>(memory_.data());
  for (const auto& object : {std::span<const std::byte>(static_cast<const std::byte*>(nullptr), 5),
                             std::span(data, SIZE_MAX), std::span(data, SIZE_MAX / 2),
                             std::span(data, (std::size_t{1} << 48) + 1)}) {
    refuse_both(std::to_string(object.size()) + " bytes", object, "x");
  }
  for (const std::string& bad :
       {std::string(10000000, 'x'), std::string(1018, 'x'), std::string("a\0b", 3)}) {
    refuse_both("a name", text, bad);
  }
  refuse_both("a set", text, "x", ProcessSet(7));
  for (const int root : {-1, world_.size(), kLeastInt}) {
    refuse("a root", [&] { broadcast_object(world_, text, {.root = root}); });
  }
}

TEST_F(HostileArguments, BuffersAndNodes) {
  constexpr std::size_t kMostAddressed = std::size_t{1} << 48;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX - 63, SIZE_MAX - 4096,
                                  SIZE_MAX - 3 * 4096, SIZE_MAX / 2, kMostAddressed + 1}) {
    refuse(std::to_string(bytes) + " bytes", [&] { Buffer(world_, bytes); });
  }
  for (const Device& device : {Device{DeviceKind::cuda, -1}, Device{DeviceKind::cuda, kMostInt},
                               Device{static_cast<DeviceKind>(9), 0}, Device{DeviceKind::cpu, 3}}) {
    refuse("a device", [&] { Buffer(world_, 64, device); });
  }
  for (const std::size_t bytes : {kMostAddressed, std::size_t{1} << 46}) {
    expect_error(ErrorCode::out_of_memory, [&] { Buffer(world_, bytes); });
    expect_next_works();
  }
  for (const int node : {-1, world_.cross_size(), kMostInt}) {
    refuse("a node", [&] { (void)world_.ranks_of_node(node); });
  }
}

}  // namespace
}  // namespace hora::internal::test
