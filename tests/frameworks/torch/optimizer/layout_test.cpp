#include "frameworks/torch/optimizer/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::SizeIs;

constexpr std::size_t MiB = std::size_t{1} << 20;

std::vector<std::size_t> gradients_of(const BucketLayout& layout) {
  std::vector<std::size_t> gradients;
  for (const GradientPlace& place : layout.places) gradients.push_back(place.gradient);
  return gradients;
}

TEST(AssignBuckets, LargeGradientsComeFirstAndTheRestInOnePieceWithTheLanes) {
  const auto type = DataType::float32;
  const std::vector<GradientSize> gradients{
      {type, 100000}, {type, 400}, {type, 65536}, {DataType::float64, 400000, type}, {type, 65532}};
  const auto layouts = assign_buckets(gradients, MiB, 1, 65536);
  ASSERT_THAT(layouts, SizeIs(1));
  const BucketLayout& layout = layouts.front();
  EXPECT_THAT(gradients_of(layout), ElementsAre(2, 0, 4, 3, 1));
  EXPECT_EQ(layout.apart, 2u);
  EXPECT_EQ(layout.places[1].offset, 65536u);
  EXPECT_EQ(layout.joint_offset, 65536u + 100032u);
  EXPECT_EQ(layout.places[2].offset, layout.joint_offset);
  EXPECT_EQ(layout.presence_offset, layout.joint_offset + 65536 + 200000 + 448);

  EXPECT_GE(locations_offset(layout), layout.bytes);
  EXPECT_EQ(locations_offset(layout) % 64, 0u);
  EXPECT_EQ(memory_bytes(layout), locations_offset(layout) + 2 * sizeof(Location));

  const auto together = assign_buckets(gradients, MiB);
  EXPECT_EQ(together.front().apart, 0u);
  EXPECT_EQ(together.front().joint_offset, 0u);
  EXPECT_EQ(together.front().bytes, layout.bytes);
}

TEST(HoldTheSame, ComparesTheGradientsOfEachBucketAndItsType) {
  const std::vector<GradientSize> gradients(4, {DataType::float32, 256});
  const auto layouts = assign_buckets(gradients, 512);
  ASSERT_THAT(layouts, SizeIs(2));
  EXPECT_TRUE(hold_the_same(layouts, layouts));
  auto others = layouts;
  std::swap(others[0].places[0].gradient, others[0].places[1].gradient);
  EXPECT_TRUE(hold_the_same(layouts, others));
  std::swap(others[0].places[0].gradient, others[1].places[0].gradient);
  EXPECT_FALSE(hold_the_same(layouts, others));
  others = layouts;
  std::swap(others[0], others[1]);
  EXPECT_FALSE(hold_the_same(layouts, others));
  others.pop_back();
  EXPECT_FALSE(hold_the_same(layouts, others));
  others = layouts;
  others[1].type = DataType::bfloat16;
  EXPECT_FALSE(hold_the_same(layouts, others)) << "one travels in another type";
}

TEST(AssignBuckets, GradientsThatTravelInOneTypeShareABucket) {
  const std::vector<GradientSize> gradients{{DataType::float32, 100, DataType::float16},
                                            {DataType::float16, 40},
                                            {DataType::float64, 80, DataType::float16},
                                            {DataType::float32, 100, DataType::bfloat16}};
  const auto layouts = assign_buckets(gradients, MiB);
  ASSERT_THAT(layouts, SizeIs(2));
  EXPECT_EQ(layouts[0].type, DataType::bfloat16);
  EXPECT_EQ(layouts[0].gradient_bytes, 128U);
  const BucketLayout& layout = layouts[1];
  EXPECT_EQ(layout.type, DataType::float16);
  // 80 bytes of float64 are 20 of float16. What is as `.grad` shows it has no gradient memory.
  EXPECT_THAT(layout.places, ElementsAre(GradientPlace{2, 0, DataType::float64, 0},
                                         GradientPlace{1, 64, DataType::float16, 0},
                                         GradientPlace{0, 128, DataType::float32, 128}));
  EXPECT_EQ(layout.presence_offset, 192U);
  EXPECT_EQ(layout.flag_offset, 192U + 3 * 2);
  EXPECT_EQ(layout.bytes, 192U + (4 + step_lanes) * 2);
  EXPECT_EQ(layout.gradient_bytes, 256U);
}

TEST(AssignBuckets, AtMostTwoAreOpenAndGroupsShareThemWithNoOthers) {
  const auto type = DataType::float32;
  const std::size_t tiny = 20 << 10;
  const struct {
    std::vector<GradientSize> gradients;
    std::size_t bucket_bytes;
    std::vector<std::vector<std::size_t>> buckets;
  } cases[] = {
      // The tiny one before a huge one is joined by later small ones.
      {{{type, 2 * MiB}, {type, tiny}, {type, 9 * MiB}, {type, tiny}}, 4 * MiB, {{2}, {3, 1, 0}}},
      // 2.6 MiB fit twice into no bucket of 4 MiB, nor reach 3/4 of it.
      {{4, {type, 26 * MiB / 10}}, 4 * MiB, {{3}, {2}, {1}, {0}}},
      {{{type, 64, type, 0},
        {type, 64},
        {DataType::float64, 64, DataType::float64, 0},
        {type, 4096, type, 0}},
       256,
       {{2}, {1}, {3, 0}}}};
  for (const auto& each : cases) {
    std::vector<std::vector<std::size_t>> buckets;
    for (const auto& layout : assign_buckets(each.gradients, each.bucket_bytes)) {
      buckets.push_back(gradients_of(layout));
    }
    EXPECT_EQ(buckets, each.buckets);
  }
}

TEST(AssignBuckets, RandomSizesKeepTheRules) {
  auto random = test::generator();
  for (int round = 0; round < 200; ++round) {
    const std::size_t bucket_bytes = std::uniform_int_distribution<std::size_t>(1, 1 << 16)(random);
    std::vector<GradientSize> gradients(std::uniform_int_distribution<std::size_t>(0, 80)(random));
    for (GradientSize& gradient : gradients) {
      const int exponent = std::uniform_int_distribution<int>(0, 17)(random);
      const auto elements =
          std::uniform_int_distribution<std::size_t>(0, std::size_t{1} << exponent)(random);
      gradient.type = random() % 2 == 0 ? DataType::float32 : DataType::float64;
      gradient.bytes = elements * size_of(gradient.type);
      gradient.wire_type = random() % 2 == 0 ? gradient.type : DataType::float32;
    }
    const auto layouts = assign_buckets(gradients, bucket_bytes);
    EXPECT_EQ(layouts, assign_buckets(gradients, bucket_bytes));

    std::set<std::size_t> placed;
    std::size_t earlier_last = gradients.size();
    for (const BucketLayout& layout : layouts) {
      std::size_t end = 0;
      std::size_t gradients_end = 0;
      std::size_t previous = gradients.size();
      for (const GradientPlace& place : layout.places) {
        EXPECT_TRUE(placed.insert(place.gradient).second);
        const GradientSize& gradient = gradients[place.gradient];
        EXPECT_EQ(gradient.wire_type, layout.type);
        EXPECT_EQ(gradient.type, place.type);
        EXPECT_EQ(place.offset % 64, 0U);
        EXPECT_EQ(place.offset, end);
        EXPECT_LT(place.gradient, previous);
        previous = place.gradient;
        const std::size_t elements = gradient.bytes / size_of(gradient.type);
        end = place.offset + (elements * size_of(layout.type) + 63) / 64 * 64;
        if (place.type == layout.type) continue;
        EXPECT_EQ(place.gradient_offset, gradients_end);
        gradients_end += (gradient.bytes + 63) / 64 * 64;
      }
      EXPECT_EQ(layout.presence_offset, end);
      EXPECT_EQ(layout.flag_offset, end + layout.places.size() * size_of(layout.type));
      EXPECT_EQ(layout.step_offset, layout.flag_offset + size_of(layout.type));
      EXPECT_EQ(layout.bytes, layout.step_offset + step_lanes * size_of(layout.type));
      EXPECT_EQ(layout.gradient_bytes, gradients_end);
      EXPECT_TRUE(layout.places.size() == 1 || end <= bucket_bytes + bucket_bytes / 4);
      EXPECT_LT(previous, earlier_last);
      earlier_last = previous;
    }
    EXPECT_EQ(placed.size(), gradients.size());
  }
}

TEST(ShardPieces, HoldEachElementOnce) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 200; ++round) {
    const int slices = std::uniform_int_distribution(1, 9)(random);
    std::vector<GradientSize> sizes;
    std::vector<std::int64_t> counts;
    for (int i = std::uniform_int_distribution(1, 12)(random); i > 0; --i) {
      counts.push_back(std::uniform_int_distribution(0, 300)(random));
      const auto type = i % 3 == 0 ? DataType::float64 : DataType::float32;
      sizes.push_back({type, static_cast<std::size_t>(counts.back()) * size_of(type)});
    }
    std::vector<std::int64_t> found(counts.size(), 0);
    for (const auto& layout : assign_buckets(sizes, 2048, static_cast<std::size_t>(slices))) {
      EXPECT_EQ(layout.presence_offset % (64 * static_cast<std::size_t>(slices)), 0U);
      for (int slice = 0; slice < slices; ++slice) {
        for (const ShardPiece& piece : pieces_of_slice(layout, counts, slice, slices)) {
          EXPECT_GT(piece.count, 0);
          EXPECT_LE(piece.offset + piece.count, slice_elements(layout, slices));
          EXPECT_EQ(piece.begin, found[piece.gradient]) << "in order, without a gap";
          found[piece.gradient] += piece.count;
        }
      }
    }
    EXPECT_EQ(found, counts);
  }
}

TEST(Groups, AreOfAboutEqualBytes) {
  const auto groups = equal_groups(std::vector<GradientSize>(10, {DataType::float32, 40}), 3);
  EXPECT_TRUE(std::is_sorted(groups.begin(), groups.end()));
  for (std::size_t group = 0; group < 3; ++group) {
    EXPECT_THAT(std::count(groups.begin(), groups.end(), group), AnyOf(3, 4));
  }
  // More groups than gradients, and gradients without bytes.
  EXPECT_EQ(equal_groups(std::vector<GradientSize>{{DataType::float32, 0}}, 5).size(), 1U);
}

}  // namespace
}  // namespace hora::internal
