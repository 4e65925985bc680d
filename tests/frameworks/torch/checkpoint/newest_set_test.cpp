#include "frameworks/torch/checkpoint/newest_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
