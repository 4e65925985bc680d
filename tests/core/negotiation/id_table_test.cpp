#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/negotiation/known_names.h"
#include "tests/core/negotiation/leader_under_test.h"

namespace hora::internal {
namespace {

using test::shaped;
using testing::UnorderedElementsAre;

const TreePosition root_of_two_nodes(test::two_nodes_of_two, 0);

IdUse use_with(LocalRanks ready) {
  return {.retire = {}, .last_run = {}, .ready_ranks = [ready](Id) { return ready; }};
}

TEST(IdTable, FindsANameByItsIdAndBack) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.id_of("g"), Id{3});
  EXPECT_EQ(table.at(3).name, "g");
  EXPECT_EQ(table.at(3).signature, shaped(8));
  EXPECT_EQ(table.id_of("h"), std::nullopt);
  EXPECT_EQ(table.find(4), nullptr);
}

TEST(IdTable, OfAnIdThatIsGivenUpNothingIsLeft) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.give_up(3), "g");
  EXPECT_EQ(table.id_of("g"), std::nullopt);
  EXPECT_EQ(table.find(3), nullptr);
  EXPECT_EQ(table.give_up(3), std::nullopt);
}

TEST(IdTable, ReadyIdsAreThoseOfANodeOrAChildUntilTheyHaveRun) {
  IdTable table;
  for (const Id id : {0u, 1u, 2u}) table.assign(id, "t" + std::to_string(id), shaped(8));
  EXPECT_TRUE(table.ready_ids().empty());
  table.find(0)->node_ready = true;
  table.find(2)->ready_below.insert(1);
  EXPECT_THAT(table.ready_ids(), UnorderedElementsAre(0, 2));
  table.clear_ready(0);
  table.clear_ready(7);
  EXPECT_THAT(table.ready_ids(), UnorderedElementsAre(2));
}

TEST(IdTable, AFullMaskCountsOnlyOnceItIsAnnounced) {
  IdTable table;
  table.assign(3, "g", shaped(8));
  EXPECT_EQ(table.ready_by(3, use_with(0b10), root_of_two_nodes).local, 0b10u);
  EXPECT_EQ(table.ready_by(3, use_with(0b11), root_of_two_nodes).local, 0u);
  table.find(3)->node_ready = true;
  EXPECT_EQ(table.ready_by(3, use_with(0), root_of_two_nodes).local, 0b11u);
}

TEST(KnownId, IsCompleteOnceItsNodeAndEveryChildIsReadyOrHasJoined) {
  JoinedRanks joined;
  KnownId known{.name = "g", .signature = shaped(8)};
  known.node_ready = true;
  EXPECT_FALSE(known.complete(joined, root_of_two_nodes));
  joined.add({2});
  EXPECT_FALSE(known.complete(joined, root_of_two_nodes));
  joined.add({3});
  EXPECT_TRUE(known.complete(joined, root_of_two_nodes));
  EXPECT_FALSE(known.all_came(root_of_two_nodes));
  known.ready_below.insert(1);
  EXPECT_TRUE(known.all_came(root_of_two_nodes));
}

}  // namespace
}  // namespace hora::internal
