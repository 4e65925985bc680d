#include "ops/context/process_tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>

namespace hora::internal {
namespace {

using testing::HasSubstr;

TEST(BindingAdvice, OnlyWhereAnotherCoreIsFree) {
  EXPECT_FALSE(binding_advice(2, 8, 2).has_value()) << "two cores a rank";
  EXPECT_FALSE(binding_advice(1, 2, 2).has_value()) << "no core is free";
  EXPECT_FALSE(binding_advice(1, 1, 4).has_value());
  const auto advice = binding_advice(1, 8, 2);
  ASSERT_TRUE(advice.has_value());
  EXPECT_THAT(*advice, HasSubstr("8 cores for 2 ranks"));
  EXPECT_THAT(*advice, HasSubstr("--bind-to none"));
}

TEST(Cores, AProcessHasSomeOfItsHosts) {
  EXPECT_GE(cores_of_process(), 1);
  EXPECT_GE(cores_of_host(), 1);
  EXPECT_LE(cores_of_process(), cores_of_host());
}

std::size_t page_faults() {
  std::size_t minor = 0;
  if (std::FILE* file = std::fopen("/proc/self/stat", "r")) {
    EXPECT_EQ(std::fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %zu", &minor), 1);
    std::fclose(file);
  }
  return minor;
}

// What it is for: the second round of a training step takes its gradients from memory it has.
TEST(KeepLargeAllocations, MemoryIsNotGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer brings an allocator of its own";
#endif
  if (!keep_large_allocations()) GTEST_SKIP() << "this C library keeps its own thresholds";
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const auto use = [&] {
    const auto block = std::make_unique<char[]>(kBytes);
    std::memset(block.get(), 1, kBytes);
  };
  use();
  const std::size_t before = page_faults();
  for (int i = 0; i < 5; ++i) use();
  EXPECT_LT(page_faults() - before, kBytes / 4096) << "five times as many where it is given back";
}

}  // namespace
}  // namespace hora::internal
