#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cross/adasum_allreduce.h"

namespace hora::internal {
namespace {

using Levels = std::vector<HalvingLevel>;

std::vector<Levels> of_all(int members, std::size_t bytes) {
  std::vector<Levels> all;
  for (int member = 0; member < members; ++member)
    all.push_back(halving_levels(member, members, bytes));
  return all;
}

std::size_t index(int member) {
  return static_cast<std::size_t>(member);
}

constexpr std::size_t kLengths[] = {0, 2, 64, 66, 128, 192, 1000, 4096, 12345 * 8};

TEST(VectorHalving, TakesTheLargestPowerOfTwo) {
  const int expected[] = {1, 2, 2, 4, 4, 4, 4, 8, 8};
  for (int members = 1; members <= 9; ++members) {
    EXPECT_EQ(halving_members(members), expected[members - 1]);
  }
}

TEST(VectorHalving, AnExample) {
  EXPECT_EQ(halving_levels(2, 4, 200),
            (Levels{{3, true, {0, 128}, {128, 72}}, {0, false, {64, 64}, {0, 64}}}));
  EXPECT_TRUE(halving_levels(0, 1, 200).empty());
}

TEST(VectorHalving, PartnersGiveEachOtherWhatTheyKeep) {
  for (const int members : {2, 4, 8, 16}) {
    for (const std::size_t bytes : kLengths) {
      const auto all = of_all(members, bytes);
      for (int member = 0; member < members; ++member) {
        for (std::size_t l = 0; l < all[index(member)].size(); ++l) {
          const HalvingLevel& own = all[index(member)][l];
          const HalvingLevel& partners = all[index(own.partner)][l];
          EXPECT_EQ(own.partner, member ^ (1 << l));
          EXPECT_EQ(own.is_lower, member < own.partner);
          EXPECT_EQ(partners.partner, member);
          EXPECT_EQ(own.given, partners.kept);
          EXPECT_EQ(own.kept, partners.given);
        }
      }
    }
  }
}

/// After level l, the members of equal index / 2^(l+1) hold everything once.
TEST(VectorHalving, PiecesCoverTheWholeOnce) {
  for (const int members : {2, 4, 8, 16}) {
    for (const std::size_t bytes : kLengths) {
      const auto all = of_all(members, bytes);
      for (std::size_t l = 0; l < all[0].size(); ++l) {
        const int group = 2 << l;
        for (int first = 0; first < members; first += group) {
          std::vector<Range> pieces;
          for (int m = first; m < first + group; ++m) pieces.push_back(all[index(m)][l].kept);
          std::ranges::sort(pieces, {},
                            [](Range range) { return std::pair(range.begin, range.bytes); });
          std::size_t end = 0;
          for (const Range& piece : pieces) {
            EXPECT_EQ(piece.begin, end);
            EXPECT_TRUE(piece.begin % kAlignment == 0 || piece.bytes == 0);
            end += piece.bytes;
          }
          EXPECT_EQ(end, bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal
