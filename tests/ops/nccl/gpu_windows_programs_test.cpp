// Random programs on buffers that become windows of NCCL's, against the sums that they have: whole
// and parts, memory that is none, several at once, ranks that join, buffers that ranks give back.
#include <string>

#include "tests/ops/nccl/gpu_windows.h"

namespace hora::internal {
namespace {

using test::WindowBuffer;
using test::WindowRank;

constexpr std::size_t kCount = 300;
constexpr int kBuffers = 4;

/// One rank's view of a program that all of them draw alike.
class Program {
 public:
  Program(WindowRank& rank, std::uint64_t salt) : rank_(rank), random_(test::generator(salt)) {
    for (int i = 0; i < kBuffers; ++i) {
      buffers_.push_back(rank.buffer(kCount));
      plain_.push_back(std::make_unique<test::DeviceTensor>(
          rank.gpu(), DataType::float32, std::vector<std::byte>(kCount * sizeof(float))));
      plain_.back()->read();
    }
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (random_() % 8 == 0) replace();
      begin();
      finish();
    }
  }

 private:
  struct Expected {
    std::shared_ptr<Operation> submission;
    float* values;
    std::size_t count;
    float sum;
  };

  /// On one rank, some or all of them: the others do so later.
  void replace() {
    const std::uint64_t which = random_() % kBuffers;
    const std::uint64_t who = random_() % (static_cast<std::uint64_t>(rank_.world().size()) + 2);
    const bool all = who >= static_cast<std::uint64_t>(rank_.world().size());
    if (all || who == static_cast<std::uint64_t>(rank_.rank())) {
      buffers_[which] = rank_.buffer(kCount);
    }
  }

  void begin() {
    const std::uint64_t at_once = 1 + random_() % kBuffers;
    for (std::uint64_t i = 0; i < at_once; ++i) {
      const bool part = random_() % 5 == 0;
      const std::uint64_t odd = random_() % 20;  // that rank, if there is one, uses other memory
      const std::uint64_t value = random_() % 50;
      const std::size_t offset = part ? random_() % 100 : 0;
      const std::size_t count = part ? 1 + random_() % 100 : kCount;
      const bool is_odd = odd == static_cast<std::uint64_t>(rank_.rank());
      float* const begin =
          is_odd ? reinterpret_cast<float*>(plain_[i]->data()) : buffers_[i].values();
      float* const values = begin + offset;
      const auto ranks = static_cast<float>(rank_.world().size());
      std::fill_n(values, count, static_cast<float>(value) + static_cast<float>(rank_.rank()));
      const std::string name = "x" + std::to_string(i) + "_" + std::to_string(count);
      expected_.push_back({rank_.submit(name, values, count), values, count,
                           ranks * static_cast<float>(value) + ranks * (ranks - 1) / 2});
    }
  }

  void finish() {
    for (const Expected& each : expected_) rank_.engine().wait(*each.submission);
    rank_.synchronize();
    for (const Expected& each : expected_) {
      EXPECT_THAT(std::vector(each.values, each.values + each.count), testing::Each(each.sum))
          << "rank " << rank_.rank();
    }
    expected_.clear();
  }

  WindowRank& rank_;
  std::mt19937_64 random_;
  std::vector<WindowBuffer> buffers_;
  std::vector<std::unique_ptr<test::DeviceTensor>> plain_;
  std::vector<Expected> expected_;
};

TEST(GpuWindowPrograms, GiveTheSumsOfAllRanks) {
  auto random = test::generator();
  for (int run = 0; run < 20; ++run) {
    test::GpuWorldOptions options = test::with_windows(2 + static_cast<int>(random() % 3));
    options.settings.fusion_threshold = random() % 2 == 0 ? 0 : std::size_t{1} << 20;
    const std::uint64_t salt = random();
    test::GpuWorld world(options);
    int windows = 0;
    world.on_all_ranks([&](int number) {
      WindowRank rank(world, number);
      Program(rank, salt).run(30);
      if (number == 0) windows = rank.gpu().nccl_count("comm_window_register");
    });
    EXPECT_GT(windows, 0);
    for (int rank = 1; rank < world.size(); ++rank) {
      EXPECT_EQ(world.gpu(rank).nccl_count("comm_window_register"), windows);
    }
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    world.end();
    EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace hora::internal
