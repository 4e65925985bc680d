// Buffers on GPUs that become windows of NCCL's symmetric memory (HORA_NCCL_WINDOWS): which, when,
// the same on all ranks, and what else happens to memory in them, also in random programs. The fake
// NCCL refuses collectives in windows on some ranks alone, and windows that are not made and ended
// in one order.
#include <hora/error.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/log.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/nccl_group.h"
#include "tests/ops/nccl/gpu_ranks.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::FakeGpu;
using test::GpuWorld;
using test::GpuWorldOptions;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

/// A hora::Buffer of floats. The fake's memory is the host's.
struct GiveBack {
  Engine* engine = nullptr;
  void operator()(float* values) const {
    engine->release_on_device(reinterpret_cast<std::byte*>(values));
  }
};
using WindowBuffer = std::unique_ptr<float, GiveBack>;

GpuWorldOptions with_windows(int ranks) {
  GpuWorldOptions options = test::small_chunks({ranks}, 60s);
  options.settings.nccl_windows = true;
  options.gpu.longest_delay = std::chrono::microseconds(100);
  return options;
}

/// One rank's thread.
class WindowRank {
 public:
  WindowRank(GpuWorld& world, int rank)
      : world_(world), rank_(rank), device_(world.gpu(rank).choose()), stream_(device_.cuda(), 0) {}

  GpuWorld& world() const { return world_; }
  Engine& engine() const { return world_.engine(rank_); }
  FakeGpu& gpu() const { return device_; }
  int rank() const { return rank_; }
  void* stream() const { return stream_.get(); }
  WindowBuffer buffer(std::size_t count) const {
    std::byte* const data = engine().allocate_on_device(count * sizeof(float));
    return {reinterpret_cast<float*>(data), GiveBack{&engine()}};
  }

  static Signature signature(std::size_t count, OperationKind kind = OperationKind::allreduce) {
    Signature result;
    result.kind = kind;
    result.device = DeviceKind::cuda;
    result.shape = {static_cast<std::int64_t>(count)};
    return result;
  }
  std::shared_ptr<Operation> submit(std::string_view name, float* values, std::size_t count,
                                    ProcessSet set = kWorld) const {
    return engine().submit(
        {name, signature(count), reinterpret_cast<std::byte*>(values), stream_.get()}, set);
  }
  void synchronize() const {
    EXPECT_EQ(device_.cuda().stream_synchronize(stream_.get()), cudaSuccess);
  }
  /// Reduces rank + 1 of every rank, and looks at the result.
  void allreduce(std::string_view name, float* values, std::size_t count,
                 ProcessSet set = kWorld) const {
    std::fill_n(values, count, static_cast<float>(rank_ + 1));
    engine().wait(*submit(name, values, count, set));
    synchronize();
    const int ranks = world_.size();
    EXPECT_THAT(std::vector(values, values + count),
                Each(static_cast<float>(ranks * (ranks + 1)) / 2))
        << name << " on rank " << rank_;
  }

 private:
  GpuWorld& world_;
  int rank_;
  FakeGpu& device_;
  CudaStream stream_;
};

class GpuWindows : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(WindowRank&)>& body) {
    world_.on_all_ranks([&](int rank) {
      WindowRank own(world_, rank);
      body(own);
    });
  }
  void expect_count(const char* call, int count) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_EQ(world_.gpu(rank).nccl_count(call), count) << call << " on rank " << rank;
    }
  }
  void TearDown() override { test::expect_clean_end(world_); }

  GpuWorld world_{with_windows(GetParam())};
};

INSTANTIATE_TEST_SUITE_P(Sizes, GpuWindows, testing::Values(2, 3, 4));

TEST_P(GpuWindows, ABufferBecomesOneOnceWithItsFirstCollective) {
  run([&](WindowRank& rank) {
    std::vector<WindowBuffer> buffers;
    for (std::size_t i = 0; i < 3; ++i) buffers.push_back(rank.buffer(1000 * (i + 1)));
    for (int round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        rank.allreduce("x" + std::to_string(i), buffers[i].get(), 1000 * (i + 1));
      }
    }
    EXPECT_EQ(rank.gpu().live().windows, 3);
  });
  expect_count("comm_window_register", 3);
  expect_count("comm_window_deregister", 0);
}

TEST_P(GpuWindows, AnAverageThereIsASumOfScaledValues) {
  run([&](WindowRank& rank) {
    const WindowBuffer buffer = rank.buffer(1000);
    const auto ranks = static_cast<float>(rank.world().size());
    const auto average = [&](std::size_t offset, std::size_t count, double prescale) {
      const int copies = rank.gpu().count("batched_copy");
      std::fill_n(buffer.get() + offset, count, static_cast<float>(8 * (rank.rank() + 1)));
      Signature signature = WindowRank::signature(count);
      signature.op = ReduceOp::average;
      signature.prescale = prescale;
      auto* const data = reinterpret_cast<std::byte*>(buffer.get() + offset);
      rank.engine().submit_and_wait({"a" + std::to_string(count), signature, data, rank.stream()});
      rank.synchronize();
      EXPECT_THAT(std::vector(buffer.get() + offset, buffer.get() + offset + count),
                  Each(testing::FloatEq(static_cast<float>(prescale) * 4 * (ranks + 1))));
      return rank.gpu().count("batched_copy") - copies;
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(average(0, 1000, 1.0), 1) << "before NCCL";
      EXPECT_EQ(average(0, 500, 0.25), 1) << "with the other scale";
      EXPECT_EQ(average(100, 300, 1.0), 2) << "apart, NCCL's own: there and back";
    }
  });
}

TEST_P(GpuWindows, TheyEndBeforeTheCommunicatorIsClosed) {
  std::vector<WindowBuffer> buffers(static_cast<std::size_t>(GetParam()));
  run([&](WindowRank& rank) {
    WindowBuffer& own = buffers[static_cast<std::size_t>(rank.rank())];
    own = rank.buffer(1000);
    rank.allreduce("x", own.get(), 1000);
    {
      const WindowBuffer given_back = rank.buffer(500);
      rank.allreduce("y", given_back.get(), 500);
    }
    rank.engine().depart();
    rank.engine().stop();
    auto& device = static_cast<NcclDevice&>(rank.world().port(rank.rank()));
    device.close(std::chrono::steady_clock::now() + 20s);
    EXPECT_EQ(rank.gpu().live().windows, 0);
    EXPECT_EQ(rank.gpu().nccl_count("mem_free"), 1);
  });
  buffers.clear();
}

TEST(GpuWindowsOff, WhereNcclHasNone) {
  GpuWorldOptions options = with_windows(3);
  options.gpu.has_windows = false;
  testing::internal::CaptureStderr();
  GpuWorld world(options);
  log().flush();
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("HORA_NCCL_WINDOWS=on has no effect"));
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << "of one rank";
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer buffer = rank.buffer(1000);
    for (int round = 0; round < 3; ++round) rank.allreduce("x", buffer.get(), 1000);
  });
  EXPECT_THAT(world.complaints(), IsEmpty());
}

/// A call that fails on the last rank: at once, in the background, where the others wait in NCCL,
/// or as what has been given back ends.
class GpuWindowFault : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Calls, GpuWindowFault,
                         testing::Values("comm_window_register", "window_registration"));

TEST_P(GpuWindowFault, IsNamedAndEndsEveryRank) {
  GpuWorldOptions options = with_windows(3);
  options.settings.device_timeout = 400ms;
  options.settings.log_level = LogLevel::off;
  GpuWorld world(options);
  world.gpu(2).nccl_fail(GetParam(), 2, ncclSystemError);
  const auto begin = std::chrono::steady_clock::now();
  world.on_all_ranks([&](int number) {
    const WindowRank rank(world, number);
    const WindowBuffer first = rank.buffer(1000);
    const WindowBuffer second = rank.buffer(1000);
    rank.allreduce("x", first.get(), 1000);
    // The collective itself may end first, and its kernel never.
    const auto text =
        number == 2
            ? testing::Matcher<std::string>(AllOf(
                  HasSubstr("ncclCommWindowRegister (HORA_NCCL_WINDOWS)"), HasSubstr(" failed: ")))
            : testing::Matcher<std::string>(testing::_);
    test::expect_error(ErrorCode::transport, text,
                       [&] { rank.engine().wait(*rank.submit("y", second.get(), 1000)); });
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(world.gpu(0).nccl_count("mem_free"), 0) << "peers may still write there";
  EXPECT_THAT(world.complaints(), IsEmpty());
}

constexpr std::size_t kCount = 300;
constexpr int kBuffers = 4;

/// One rank's part of a program that all of them draw alike.
void run_program(const WindowRank& rank, std::uint64_t salt, int steps) {
  auto random = test::generator(salt);
  const auto ranks = static_cast<std::uint64_t>(rank.world().size());
  const auto own = static_cast<std::uint64_t>(rank.rank());
  std::vector<WindowBuffer> buffers;
  std::vector<std::unique_ptr<test::DeviceTensor>> plain;
  for (int i = 0; i < kBuffers; ++i) {
    buffers.push_back(rank.buffer(kCount));
    plain.push_back(std::make_unique<test::DeviceTensor>(
        rank.gpu(), DataType::float32, std::vector<std::byte>(kCount * sizeof(float))));
    plain.back()->read();
  }
  struct Expected {
    std::shared_ptr<Operation> submission;
    std::span<float> values;
    std::uint64_t sum;
  };
  for (int step = 0; step < steps; ++step) {
    if (random() % 8 == 0) {
      // On one rank, some or all of them: the others do so later.
      const std::uint64_t which = random() % kBuffers;
      const std::uint64_t who = random() % (ranks + 2);
      if (who >= ranks || who == own) buffers[which] = rank.buffer(kCount);
    }
    std::vector<Expected> all;
    const std::uint64_t at_once = 1 + random() % kBuffers;
    for (std::uint64_t i = 0; i < at_once; ++i) {
      const bool part = random() % 5 == 0;
      const std::uint64_t odd = random() % 20;  // that rank, if there is one, uses other memory
      const std::uint64_t value = random() % 50;
      const std::size_t offset = part ? random() % 100 : 0;
      const std::size_t count = part ? 1 + random() % 100 : kCount;
      float* const begin =
          odd == own ? reinterpret_cast<float*>(plain[i]->data()) : buffers[i].get();
      const std::span<float> values(begin + offset, count);
      std::ranges::fill(values, static_cast<float>(value + own));
      const std::string name = "x" + std::to_string(i) + "_" + std::to_string(count);
      all.push_back({rank.submit(name, values.data(), count), values,
                     ranks * value + ranks * (ranks - 1) / 2});
    }
    for (const Expected& each : all) rank.engine().wait(*each.submission);
    rank.synchronize();
    for (const Expected& each : all) {
      EXPECT_THAT(each.values, Each(static_cast<float>(each.sum))) << "rank " << own;
    }
  }
}

TEST(GpuWindowPrograms, GiveTheSumsOfAllRanks) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    GpuWorldOptions options = with_windows(2 + static_cast<int>(random() % 3));
    options.settings.fusion_threshold = random() % 2 == 0 ? 0 : std::size_t{1} << 20;
    const std::uint64_t salt = random();
    GpuWorld world(options);
    int windows = 0;
    world.on_all_ranks([&](int number) {
      const WindowRank rank(world, number);
      run_program(rank, salt, 30);
      if (number == 0) windows = rank.gpu().nccl_count("comm_window_register");
    });
    EXPECT_GT(windows, 0);
    for (int rank = 1; rank < world.size(); ++rank) {
      EXPECT_EQ(world.gpu(rank).nccl_count("comm_window_register"), windows);
    }
    test::expect_clean_end(world);
  }
}

}  // namespace
}  // namespace hora::internal
