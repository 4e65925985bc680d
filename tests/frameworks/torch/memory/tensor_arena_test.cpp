// LibTorch's tensors in memory that the ranks of a node share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "frameworks/torch/tensor_view.h"
#include "tests/support/child_process.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t kLeast = (64 << 10) / 4;  // elements of float32

Context init_with(TensorArenaUse use, std::size_t limit = 0) {
  Settings settings;
  settings.tensor_arena = use;
  settings.tensor_arena_limit = limit;
  Context world = init({.settings = settings});
  start_tensor_arena(world);
  return world;
}

bool is_shared(const torch::Tensor& tensor) {
  const auto* const data = static_cast<const std::byte*>(tensor.data_ptr());
  return in_tensor_arena(data) && in_tensor_arena(data + tensor.nbytes() - 1);
}

/// Files that are made meanwhile, and so the memory that ranks share, have at most a page.
class NoLargeFiles {
 public:
  NoLargeFiles() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit least{4096, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &least);
  }
  NoLargeFiles(const NoLargeFiles&) = delete;
  NoLargeFiles& operator=(const NoLargeFiles&) = delete;
  ~NoLargeFiles() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit limit_{};
  void (*handler_)(int);
};

bool is_aligned(const torch::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64 == 0;
}

TEST(CpuAllocator, LargeTensorsLieWhereTheNodeReachesThemAndSmallOnesDoNot) {
  const Context world = init_with(TensorArenaUse::on);
  EXPECT_TRUE(wants_tensor_arena(world));
  const auto least = torch::ones({kLeast});
  EXPECT_TRUE(is_shared(least));
  EXPECT_TRUE(is_aligned(least));
  EXPECT_FALSE(is_shared(torch::ones({kLeast - 1})));
  const auto sum = least + torch::arange(kLeast);
  EXPECT_TRUE(is_shared(sum));
  EXPECT_EQ(sum[kLeast - 1].item<float>(), static_cast<float>(kLeast));
  const auto twice = torch::cat({least, least}).resize_({3 * kLeast});
  EXPECT_TRUE(is_shared(twice)) << "a storage that grows asks again";
}

TEST(CpuAllocator, OffLeavesTensorsWhereTheyWere) {
  const Context world = init_with(TensorArenaUse::off);
  EXPECT_FALSE(wants_tensor_arena(world) || is_shared(torch::ones({4 * kLeast})));
}

TEST(CpuAllocator, AutoStartsWithTheFirstCollectiveWhereANodeHasSeveralRanks) {
  const Context world = init();
  hora::broadcast(world, torch::ones({1}));
  const bool expected = world.settings().tensor_arena == TensorArenaUse::on ||
                        (world.settings().tensor_arena == TensorArenaUse::automatic &&
                         world.size() > world.cross_size());
  EXPECT_EQ(wants_tensor_arena(world), expected);
  EXPECT_EQ(is_shared(torch::ones({kLeast})), expected);
}

/// [rows, kLeast]: large enough for the arena, each element another number.
torch::Tensor numbered_rows(std::int64_t rows, int added = 0) {
  return torch::arange(rows * kLeast).to(torch::kFloat).view({rows, kLeast}) + 1000 * added;
}

TEST(CpuAllocator, CollectivesOnItsTensorsGiveTheSameResults) {
  const Context world = init_with(TensorArenaUse::on);
  const std::int64_t size = world.size();
  const std::int64_t mine = 1 + world.rank();
  // Rank r sends 1 + i rows to rank i, so all that comes here has as many.
  std::vector<std::int64_t> splits;
  for (std::int64_t to = 0; to < size; ++to) splits.push_back(1 + to);
  const std::int64_t rows = size * (size + 1) / 2;
  const std::int64_t first = mine * (mine - 1) / 2;
  for (int round = 0; round < 3; ++round) {  // by name: from the second on in place
    SCOPED_TRACE(round);
    const auto own = numbered_rows(rows, world.rank());
    ASSERT_TRUE(is_shared(own));
    std::vector<torch::Tensor> group{own.clone(),
                                     torch::full({20 * kLeast}, static_cast<float>(mine))};
    grouped_allreduce_async_(world, group, {.name = "group", .op = ReduceOp::sum}).wait();
    EXPECT_TRUE(group[1].eq(rows).all().item<bool>());
    EXPECT_TRUE(torch::allclose(group[0], numbered_rows(rows) * size + 1000 * (rows - size)));
    const auto received = alltoall(world, own, {.name = "rows", .splits = splits});
    const auto gathered = allgather(world, own, {.name = "all"});
    for (int from = 0; from < size; ++from) {
      const auto theirs = numbered_rows(rows, from);
      EXPECT_TRUE(torch::equal(received.tensor.narrow(0, from * mine, mine),
                               theirs.narrow(0, first, mine)));
      EXPECT_TRUE(torch::equal(gathered.narrow(0, from * rows, rows), theirs));
      EXPECT_TRUE(torch::equal(broadcast(world, own, {.name = "root", .root = from}), theirs));
    }
    // Uneven: the first rank gets two rows, the others one.
    const auto same = numbered_rows(size + 1);
    const auto part = world.rank() == 0 ? same.narrow(0, 0, 2) : same.narrow(0, mine, 1);
    const auto sum = reduce_scatter(world, same * mine, {.name = "sum", .op = ReduceOp::sum});
    EXPECT_TRUE(torch::equal(sum, part * rows));
    EXPECT_TRUE(torch::equal(own, numbered_rows(rows, world.rank())));
    auto in_place = own.clone();
    broadcast_(world, in_place, {.name = "in place", .root = static_cast<int>(size) - 1});
    EXPECT_TRUE(torch::equal(in_place, numbered_rows(rows, static_cast<int>(size) - 1)));
  }
}

TEST(CpuAllocator, MemoryIsUsedAgainWithoutPageFaults) {
  const Context world = init_with(TensorArenaUse::on);
  const auto use = [] {
    std::vector<torch::Tensor> tensors;
    for (int i = 1; i <= 16; ++i) tensors.push_back(torch::ones({i * kLeast}));
  };
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  use();
  const auto before = faults();
  for (int round = 0; round < 10; ++round) use();
  EXPECT_LT(faults() - before, 100) << "one round has " << 136 * 16 << " pages";
}

TEST(CpuAllocator, GrowsUpToItsLimitBeyondWhichTensorsLieElsewhere) {
  const Context world = init_with(TensorArenaUse::on, 160 << 20);
  const auto first = torch::empty({15 << 20});  // 60 MiB
  const auto second = torch::empty({15 << 20});
  EXPECT_TRUE(is_shared(first) && is_shared(second));
  const auto beyond = torch::ones({15 << 20});
  EXPECT_FALSE(is_shared(beyond));
  EXPECT_EQ(beyond.sum().item<float>(), 15 << 20);
  EXPECT_TRUE(is_shared(torch::ones({kLeast})));
}

TEST(CpuAllocator, TensorsOfRandomSizesKeepTheirValues) {
  const Context world = init_with(TensorArenaUse::on, 16 << 20);
  std::mt19937_64 random = generator();
  std::vector<torch::Tensor> used;
  int shared = 0, elsewhere = 0;
  for (int round = 0; round < 500; ++round) {
    if (used.empty() || random() % 5 < 3) {
      const auto count = static_cast<std::int64_t>(kLeast + random() % (8 * kLeast));
      used.push_back(torch::full({count}, round));
      EXPECT_TRUE(is_aligned(used.back()));
      ++(is_shared(used.back()) ? shared : elsewhere);
    } else {
      std::swap(used[random() % used.size()], used.back());
      EXPECT_TRUE(used.back().eq(used.back()[0]).all().item<bool>());
      used.pop_back();
    }
  }
  for (const auto& tensor : used) EXPECT_TRUE(tensor.eq(tensor[0]).all().item<bool>());
  EXPECT_GT(shared, 0);
  EXPECT_GT(elsewhere, 0) << "it was full now and then";
}

TEST(CpuAllocator, WithoutItsFirstSegmentTensorsAreCopied) {
  Settings settings;
  settings.tensor_arena = TensorArenaUse::on;
  const Context world = init({.settings = settings});
  const Buffer taken(world, 32 << 20);  // of what the context has made for all purposes
  {
    const NoLargeFiles no_large_files;
    start_tensor_arena(world);
  }
  auto tensor = torch::ones({kLeast});
  EXPECT_FALSE(is_shared(tensor));
  allreduce_(world, tensor, {.name = "copied"});
  EXPECT_TRUE(tensor.eq(1.0F).all().item<bool>());
}

TEST(CpuAllocator, MemoryOfADroppedHandleIsNotUsedAgain) {
  const Context world = init_with(TensorArenaUse::on);
  const void* data = nullptr;
  for (const bool in_place : {true, false}) {
    std::optional<torch::Tensor> tensor = torch::ones({kLeast});
    data = tensor->data_ptr();
    try {
      const TensorHandle handle = in_place
                                      ? allreduce_async_(world, *tensor, {.name = "in place"})
                                      : allreduce_async(world, *tensor, {.name = "out of place"});
      throw std::runtime_error("between submission and wait()");
    } catch (const std::runtime_error&) {
      tensor.reset();
    }
    const auto later = torch::empty({kLeast});
    EXPECT_TRUE(is_shared(later));
    EXPECT_EQ(later.data_ptr() == data, !in_place) << "out of place it was a copy that was in use";
    barrier(world);  // none shuts down before all have submitted
  }
}

TEST(CpuAllocator, TensorsOutliveTheContextAndAreFreedAfterTheNextOne) {
  std::optional<torch::Tensor> tensor;
  {
    const Context world = init_with(TensorArenaUse::on);
    tensor = torch::arange(5 * kLeast);
  }
  EXPECT_EQ(tensor->sum().item<std::int64_t>(), 5 * kLeast * (5 * kLeast - 1) / 2);
  const auto later = torch::ones({kLeast});
  {
    const Context world = init_with(TensorArenaUse::on);
    EXPECT_TRUE(is_shared(torch::ones({kLeast})));
    EXPECT_FALSE(is_shared(*tensor));
    EXPECT_FALSE(is_shared(later));
    EXPECT_EQ(tensor->max().item<std::int64_t>(), 5 * kLeast - 1);
    tensor.reset();
  }
  EXPECT_EQ(later.sum().item<float>(), static_cast<float>(kLeast));
}

TEST(CpuAllocator, ThreadsAllocateAndFreeEachOthersTensors) {
  const Context world = init_with(TensorArenaUse::on);
  constexpr int kThreads = 4;
  std::vector<std::vector<torch::Tensor>> made(kThreads);
  const auto in_threads = [](const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(body, thread);
  };
  in_threads([&](int thread) {
    for (int i = 0; i < 50; ++i) {
      auto tensor = torch::full({kLeast * (1 + i % 5)}, thread * 100 + i);
      if (i % 3 == 0) made[static_cast<std::size_t>(thread)].push_back(tensor);
    }
  });
  in_threads([&](int thread) {
    const int other = (thread + 1) % kThreads;
    auto& tensors = made[static_cast<std::size_t>(other)];
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      EXPECT_TRUE(tensors[k].eq(other * 100 + static_cast<int>(k) * 3).all().item<bool>());
    }
    tensors.clear();
  });
}

TEST(CpuAllocator, AForkedChildReadsTensorsAndWritesToNone) {
  const Context world = init_with(TensorArenaUse::on);
  auto tensor = torch::ones({4 * kLeast});
  auto* const data = tensor.data_ptr<float>();
  ChildProcess child([&] {
    if (data[kLeast] != 1.0F) return 1;
    for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = 7.0F;
    { const auto own = std::move(tensor); }
    // Allocated elsewhere: the arena is the parent's.
    const auto fresh = at::empty({4 * kLeast});
    return data[3] == 7.0F && fresh.data_ptr<float>() != data ? 0 : 2;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE(tensor.eq(1.0F).all().item<bool>());
  EXPECT_TRUE(is_shared(tensor));
  EXPECT_TRUE(is_shared(torch::ones({kLeast})));
  allreduce_(world, tensor, {.name = "after"});
  EXPECT_TRUE(tensor.eq(1.0F).all().item<bool>());
}

}  // namespace
}  // namespace hora::internal::test
