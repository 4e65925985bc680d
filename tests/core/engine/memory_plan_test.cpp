// Which way is chosen for which tensor.
#include <gtest/gtest.h>

#include "core/engine/tensor_memory.h"

namespace hora::internal {
namespace {

constexpr MemoryFacts of(OperationKind kind, Caller caller, std::size_t bytes = 4096) {
  return {.kind = kind, .bytes = bytes, .caller = caller, .single_node = true, .own = {}};
}

TEST(PlanOfMemory, ATensorWithoutBytesNeedsNothing) {
  EXPECT_EQ(plan_memory(of(OperationKind::allreduce, Caller::waits, 0)), MemoryPlan{});
  MemoryFacts on_host_instead = of(OperationKind::allreduce, Caller::goes_on, 0);
  on_host_instead.is_on_device = true;
  EXPECT_EQ(plan_memory(on_host_instead), MemoryPlan{});
}

TEST(PlanOfMemory, ADeviceGetsEvenEmptyTensors) {
  MemoryFacts facts = of(OperationKind::allreduce, Caller::goes_on, 0);
  facts.runs_on_device = facts.is_on_device = true;
  EXPECT_EQ(plan_memory(facts), MemoryPlan{.way = MemoryWay::device});
}

TEST(PlanOfMemory, WhatADeviceDoesNotRunIsCopiedBothWays) {
  MemoryFacts facts = of(OperationKind::allreduce, Caller::waits);
  facts.is_on_device = true;
  EXPECT_EQ(plan_memory(facts),
            (MemoryPlan{.way = MemoryWay::through_host, .copies_in = true, .copies_out = true}));
}

TEST(PlanOfMemory, WhatLiesInTheWindowsStaysThere) {
  for (const Caller caller : {Caller::goes_on, Caller::waits}) {
    for (const auto kind : {OperationKind::allreduce, OperationKind::allgather}) {
      MemoryFacts facts = of(kind, caller);
      facts.in_windows = facts.has_place = true;
      EXPECT_EQ(plan_memory(facts), MemoryPlan{.way = MemoryWay::windows});
    }
  }
}

TEST(PlanOfMemory, TheSliceThatPeersDoNotTouchStaysAlsoWhereTheCallerGoesOn) {
  MemoryFacts facts = of(OperationKind::allreduce, Caller::goes_on);
  facts.own = {1024, 512};
  const MemoryPlan around{
      .way = MemoryWay::around, .own = {1024, 512}, .copies_in = true, .copies_out = true};
  EXPECT_EQ(plan_memory(facts), around);
  facts.own = {0, facts.bytes};
  EXPECT_EQ(plan_memory(facts).way, MemoryWay::around) << "a block is there for a retreat";
}

TEST(PlanOfMemory, OfACallerThatGoesOnABlockStandsForTheTensor) {
  MemoryFacts facts = of(OperationKind::broadcast, Caller::goes_on, kFollowedBytes);
  EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::block, .copies_in = true}));
  facts.brings_data = false;
  EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::block, .copies_out = true}));
  EXPECT_EQ(plan_memory(of(OperationKind::alltoall, Caller::goes_on)),
            (MemoryPlan{.way = MemoryWay::block, .copies_in = true}));
}

TEST(PlanOfMemory, AnAllgathersInputGoesToItsPlaceInTheResult) {
  MemoryFacts facts = of(OperationKind::allgather, Caller::goes_on);
  facts.has_place = true;
  EXPECT_EQ(plan_memory(facts), MemoryPlan{.way = MemoryWay::result});
  facts.caller = Caller::waits;
  EXPECT_EQ(plan_memory(facts).way, MemoryWay::in_place) << "it pushes";
}

TEST(PlanOfMemory, NothingIsCopiedWhereNoPeerTouchesIt) {
  for (const bool single_node : {false, true}) {
    MemoryFacts facts = of(OperationKind::allreduce, Caller::waits);
    facts.single_node = single_node;
    facts.own = {0, facts.bytes};
    EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::in_place, .own = facts.own}));
  }
}

TEST(PlanOfMemory, ASliceOfItsOwnIsLeftOut) {
  MemoryFacts facts = of(OperationKind::allreduce, Caller::waits, kAloneBytes);
  facts.own = {kAloneBytes / 2, kAloneBytes / 2};
  EXPECT_EQ(
      plan_memory(facts),
      (MemoryPlan{
          .way = MemoryWay::around, .own = facts.own, .copies_in = true, .copies_out = true}));
  facts.kind = OperationKind::broadcast;
  facts.brings_data = false;
  EXPECT_EQ(plan_memory(facts),
            (MemoryPlan{.way = MemoryWay::around, .own = facts.own, .copies_out = true}));
}

TEST(PlanOfMemory, BroadcastsToCallersThatWaitInOneNode) {
  MemoryFacts facts = of(OperationKind::broadcast, Caller::waits, kFollowedBytes);
  EXPECT_EQ(plan_memory(facts), MemoryPlan{.way = MemoryWay::published});
  facts.bytes = kFollowedBytes - 1;
  EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::block, .copies_in = true}));
  facts.brings_data = false;
  EXPECT_EQ(plan_memory(facts), MemoryPlan{.way = MemoryWay::fetched});
  facts.single_node = false;
  EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::block, .copies_out = true}));
}

TEST(PlanOfMemory, AnExchangesInputIsReadWhereACallerThatWaitsHasIt) {
  MemoryFacts facts = of(OperationKind::alltoall, Caller::waits);
  facts.own = {64, 128};
  EXPECT_EQ(plan_memory(facts).way, MemoryWay::in_place);
  facts.single_node = false;
  EXPECT_EQ(plan_memory(facts),
            (MemoryPlan{.way = MemoryWay::around, .own = facts.own, .copies_in = true}));
  facts.own = {};
  EXPECT_EQ(plan_memory(facts), (MemoryPlan{.way = MemoryWay::around, .copies_in = true}));
}

}  // namespace
}  // namespace hora::internal
