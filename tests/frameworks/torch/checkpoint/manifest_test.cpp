#include "frameworks/torch/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Manifest example() {
  Manifest manifest;
  manifest.save = "c0ffee";
  manifest.step = 12;
  manifest.epoch = 3;
  manifest.time = 1'700'000'000;
  manifest.ranks_of_nodes = {2, 1};
  manifest.shards = 3;
  manifest.shard = 1;
  manifest.files = {{"state.safetensors", 77, std::string(32, 'a')}, {"b", 0, ""}};
  return manifest;
}

TEST(Checksum, IsThatOfXxh128sum) {
  // printf '' | xxh128sum; printf 'hora' | xxh128sum
  EXPECT_EQ(checksum_of({}), "99aa06d3014798d86001c324468d497f");
  const std::string text = "hora";
  EXPECT_EQ(checksum_of(std::as_bytes(std::span(text))), "83cdd6ff99123ee8d4811a98a794b9e8");
}

TEST(Manifest, ComesBack) {
  EXPECT_EQ(parse_manifest(to_text(example())).value(), example());
  EXPECT_EQ(number_of_ranks(example()), 3);
}

TEST(Manifest, AnyFlippedBitIsFound) {
  const std::string text = to_text(example());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(parse_manifest(damaged)) << "bit " << bit;
  }
}

TEST(Manifest, AnyCutIsFound) {
  const std::string text = to_text(example());
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_manifest(text.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_manifest(text + "\n"));
}

std::string problem_of(const Manifest& manifest) {
  const auto parsed = parse_manifest(to_text(manifest));
  return parsed ? "" : parsed.error();
}

TEST(Manifest, FilesLieInItsFolder) {
  for (const char* name : {"", "../state", "/etc/passwd", ".", "..", "a/b", "a\\b"}) {
    Manifest manifest = example();
    manifest.files[0].name = name;
    EXPECT_THAT(problem_of(manifest), HasSubstr("not in its folder")) << name;
  }
}

TEST(Manifest, RanksAndShardsAreSome) {
  Manifest without = example();
  without.ranks_of_nodes.clear();
  EXPECT_THAT(problem_of(without), HasSubstr("ranks or shards"));
  Manifest beyond = example();
  beyond.shard = 3;
  EXPECT_THAT(problem_of(beyond), HasSubstr("ranks or shards"));
}

FoundPart part(int rank, const std::string& folder, std::int64_t time, int shards = 0,
               int shard = -1) {
  FoundPart part;
  part.rank = rank;
  part.folder = folder;
  part.manifest.save = "save of " + std::to_string(time);
  part.manifest.step = time;
  part.manifest.time = time;
  part.manifest.shards = shards;
  part.manifest.shard = shard;
  return part;
}

TEST(NewestComplete, IsNoneWhereThereIsNone) {
  EXPECT_EQ(newest_complete({}), std::nullopt);
}

TEST(NewestComplete, IsTheLatestOnAnyRank) {
  const std::vector<FoundPart> found{part(0, "last", 5), part(1, "last", 7), part(2, "last", 7)};
  EXPECT_THAT(*newest_complete(found), ElementsAre(found[1]));
}

TEST(NewestComplete, IsTheOneSavedLastAlsoAfterAReturnToAnEarlierStep) {
  std::vector<FoundPart> found{part(0, "previous", 5), part(0, "last", 7)};
  found[0].manifest.step = 900;
  EXPECT_THAT(*newest_complete(found), ElementsAre(found[1]));
}

TEST(NewestComplete, LacksNoShard) {
  std::vector<FoundPart> found{part(0, "last", 7, 2), part(0, "rank-0/last", 7, 2, 0),
                               part(0, "previous", 5, 2), part(1, "rank-1/last", 5, 2, 1),
                               part(0, "rank-0/previous", 5, 2, 0)};
  EXPECT_THAT(*newest_complete(found), ElementsAre(found[2], found[4], found[3]));
  EXPECT_THAT(missing_shards(found[0].manifest, found), ElementsAre(1));
  found.push_back(part(3, "rank-1/last", 7, 2, 1));
  EXPECT_THAT(*newest_complete(found), ElementsAre(found[0], found[1], found[5]));
  EXPECT_THAT(missing_shards(found[0].manifest, found), IsEmpty());
}

TEST(NewestComplete, IsOfTheSlot) {
  const std::vector<FoundPart> found{part(0, "last", 7), part(0, "best", 5), part(1, "best", 6)};
  EXPECT_THAT(*newest_complete(found, "best"), ElementsAre(found[2]));
  EXPECT_EQ(newest_complete(found, "previous"), std::nullopt);
}

}  // namespace
}  // namespace hora::internal::test
