// stream_copy and copy_to_all, of ops/local/kernels.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ops/local/kernel_table.h"
#include "ops/local/kernels.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

std::vector<std::byte> random_bytes(std::size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> values(bytes);
  std::ranges::generate(values, [&] { return static_cast<std::byte>(random()); });
  return values;
}

/// Copies `bytes` between these offsets; nothing around them may change.
void expect_copies(void (*copy)(std::byte*, const std::byte*, std::size_t), std::size_t bytes,
                   std::size_t out_offset, std::size_t in_offset, std::mt19937_64& random) {
  const auto in = random_bytes(in_offset + bytes + 1, random);
  auto out = random_bytes(out_offset + bytes + 64, random);
  auto expected = out;
  if (bytes != 0) std::memcpy(expected.data() + out_offset, in.data() + in_offset, bytes);
  copy(out.data() + out_offset, in.data() + in_offset, bytes);
  ASSERT_TRUE(out == expected) << bytes << " bytes from offset " << in_offset << " to "
                               << out_offset;
}

TEST(StreamCopy, CopiesAnyLengthBetweenAnyAddressesOnEveryInstructionSet) {
  std::mt19937_64 random = test::generator();
  for (auto kernels = runnable_kernels(); *kernels != nullptr; ++kernels) {
    SCOPED_TRACE((*kernels)->instruction_set);
    for (const std::size_t bytes : {0, 1, 3, 63, 64, 65, 127, 128, 1000, 4096, 4159}) {
      for (int round = 0; round < 20; ++round) {
        expect_copies((*kernels)->stream_copy, bytes, random() % 66, random() % 66, random);
      }
    }
  }
}

TEST(StreamCopy, CopiesSmallAndLargeBlocks) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t bytes : {0, 1, 64, 32767, 32768, 131071, 131072, 131073, 1000003}) {
    for (const std::size_t offset : {0, 1, 4, 63}) {
      expect_copies(stream_copy, bytes, offset, 64 - offset, random);
      expect_copies(publish_copy, bytes, offset, 64 - offset, random);
    }
  }
}

TEST(Spread, CopiesToEveryOutput) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t bytes : {0, 1, 64, 1000, 16383, 16384, 16385, 100003}) {
    for (const std::size_t outputs : {0, 1, 2, 5}) {
      const auto in = random_bytes(bytes, random);
      std::vector<std::vector<std::byte>> results(outputs, std::vector<std::byte>(bytes + 1));
      std::vector<std::byte*> out;
      for (auto& result : results) out.push_back(result.data());
      copy_to_all(in.data(), out, bytes);
      for (const auto& result : results) {
        EXPECT_TRUE(std::equal(in.begin(), in.end(), result.begin())) << bytes;
        EXPECT_EQ(result.back(), std::byte{0}) << "wrote past the end";
      }
    }
  }
}

TEST(Spread, LeavesTheRootsOwnMemoryAlone) {
  std::mt19937_64 random = test::generator();
  auto root = random_bytes(40000, random);
  const auto expected = root;
  std::vector<std::byte> other(root.size());
  std::byte* const out[] = {root.data(), other.data()};
  copy_to_all(root.data(), out, root.size());
  EXPECT_TRUE(root == expected);
  EXPECT_TRUE(other == expected);
}

}  // namespace
}  // namespace hora::internal
