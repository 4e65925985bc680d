#include <gtest/gtest.h>

#include <limits>

#include "core/engine/tensor_memory.h"

namespace hora::internal {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

class ExchangeHeaders : public testing::Test {
 protected:
  const std::byte* written(std::uint64_t bytes, const std::vector<std::int64_t>& extents) {
    ExchangeHeader::write(memory_, {1, 0, 8192}, kNowhere, bytes, extents);
    return memory_;
  }
  alignas(64) std::byte memory_[256] = {};
};

TEST_F(ExchangeHeaders, ComeBackAsTheyWereWritten) {
  const ExchangePart part(written(48, {1, 0, 5}), 3, 8, 4);
  EXPECT_EQ(part.header.payload, (Location{1, 0, 8192}));
  EXPECT_EQ(part.header.expected, kNowhere);
  EXPECT_EQ(part.header.bytes, 48u);
  EXPECT_EQ(std::vector(part.extents.begin(), part.extents.end()),
            (std::vector<std::int64_t>{1, 0, 5}));
}

TEST_F(ExchangeHeaders, ThatCannotBeAreAnErrorOfTheRank) {
  struct Case {
    std::uint64_t bytes;
    std::vector<std::int64_t> extents;
    std::size_t row_bytes;
  };
  for (const Case& each : {Case{40, {1, 0, 5}, 8}, Case{56, {1, 0, 5}, 8}, Case{8, {-1, 2, 0}, 8},
                           Case{48, {1, 5}, 8}, Case{48, {1, 0, 5, 0}, 8},
                           Case{0, {kMost, kMost, 2}, 8}, Case{0, {kMost / 4 + 1, 0, 0}, 16},
                           Case{std::uint64_t{1} << 49, {std::int64_t{1} << 49, 0, 0}, 1}}) {
    try {
      ExchangePart(written(each.bytes, each.extents), 3, each.row_bytes, 4);
      ADD_FAILURE() << "no error for " << each.bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::transport);
      EXPECT_EQ(error.rank(), 4);
    }
  }
}

TEST_F(ExchangeHeaders, AtAnOddPlaceAreAnError) {
  written(48, {1, 0, 5});
  std::memmove(memory_ + 4, memory_, 128);
  EXPECT_THROW(ExchangePart(memory_ + 4, 3, 8, 4), Error);
}

}  // namespace
}  // namespace hora::internal
