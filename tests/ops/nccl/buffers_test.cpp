// What ranks say of their tensors, and what becomes of buffers by it. What NCCL makes of that is in
// gpu_windows_test.
#include "ops/nccl/buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

constexpr Location kProposal{.window = kProposedWindow, .reserved = 0, .offset = 4096};

Location in_window(std::uint32_t window, std::uint32_t given_back = kNoWindow) {
  return {.window = window, .reserved = 0, .offset = given_back};
}

WindowAgreement agreed(const std::vector<Location>& places) {
  return agreement_of(places);
}

TEST(WindowAgreement, BuffersOfOneLengthThatAllProposeBecomeOne) {
  EXPECT_EQ(agreed({kProposal, kProposal, kProposal}), WindowAgreement{.begins = true});
  Location longer = kProposal;
  longer.offset += 1;
  EXPECT_EQ(agreed({kProposal, longer}), WindowAgreement{});
  EXPECT_EQ(agreed({kProposal, {}}), WindowAgreement{});
  EXPECT_EQ(agreed({kProposal, in_window(1)}), WindowAgreement{});
}

TEST(WindowAgreement, ATensorIsInTheWindowThatAllGive) {
  EXPECT_EQ(agreed({in_window(3), in_window(3)}), WindowAgreement{.is_shared = true});
  EXPECT_EQ(agreed({in_window(3), in_window(4)}), WindowAgreement{});
  EXPECT_EQ(agreed({in_window(3), {}}), WindowAgreement{});
  EXPECT_EQ(agreed({{}, {}}), WindowAgreement{});
}

TEST(WindowAgreement, OneEndsThatAllNameAsTheirFirst) {
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3, 1)}),
            (WindowAgreement{.is_shared = true, .ends = 1}));
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3, 2)}), WindowAgreement{.is_shared = true});
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3)}), WindowAgreement{.is_shared = true});
}

TEST(WindowAgreement, ARankThatHasJoinedHasNone) {
  EXPECT_EQ(agreed({kProposal, kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({in_window(1), kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({kNowhere, kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({}), WindowAgreement{});
}

/// Two ranks of one program, each with buffers of its own; NCCL takes part in none of it.
class NcclBuffersTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_.choose();
    communicator_.wait_ready(test::far_away());
    for (NcclBuffers& each : buffers_) each.enable_windows();
  }
  void TearDown() override {
    communicator_.abort();
    for (NcclBuffers& each : buffers_) each.free_all();
  }
  std::byte* add(int rank, std::size_t bytes) {
    RegisteredMemory memory(gpu_.nccl(), communicator_, bytes);
    std::byte* const data = memory.data();
    of(rank).add(std::move(memory));
    return data;
  }
  NcclBuffers& of(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }

  /// Tensors of 64 bytes each that begin there, of rank 0 and of rank 1, when they are submitted.
  struct Submitted {
    std::vector<std::array<std::byte*, 2>> tensors;
    std::vector<Location> places = {};
  };
  Submitted submit(std::vector<std::array<std::byte*, 2>> tensors) {
    Submitted submitted{std::move(tensors)};
    for (const auto& tensor : submitted.tensors) {
      for (int rank = 0; rank < 2; ++rank) {
        submitted.places.push_back(of(rank).place(tensor[static_cast<std::size_t>(rank)]));
      }
    }
    return submitted;
  }
  WindowPlan plan(int rank, const Submitted& submitted) {
    BoundUnit unit;
    unit.local_size = 2;
    unit.places = submitted.places;
    for (const auto& tensor : submitted.tensors) {
      unit.unit.tensors.push_back({});
      unit.memory.insert(unit.memory.end(), 2, tensor[static_cast<std::size_t>(rank)]);
    }
    return of(rank).plan(unit, rank);
  }
  std::array<WindowPlan, 2> plans(const Submitted& submitted) {
    return {plan(0, submitted), plan(1, submitted)};
  }

  test::Ranks ranks_{1};
  test::FakeGpu& gpu_ = ranks_.gpu(0);
  NcclCommunicator communicator_ = ranks_.communicator(0);
  std::array<NcclBuffers, 2> buffers_;
};

TEST_F(NcclBuffersTest, ABufferProposesItselfInOneCollectiveAtATime) {
  const std::array first = {add(0, 100), add(1, 100)};
  const Submitted one = submit({first});
  const Submitted other = submit({first});
  EXPECT_THAT(other.places, testing::Each(Location{}));
  for (const WindowPlan& plan : plans(one)) EXPECT_EQ(plan.begins.size(), 1U);
  for (const WindowPlan& plan : plans(other)) EXPECT_TRUE(plan.is_apart(0)) << "it is one by now";
  for (const WindowPlan& plan : plans(submit({first}))) {
    EXPECT_FALSE(plan.changes());
    EXPECT_TRUE(plan.apart.empty());
    EXPECT_TRUE(plan.is_shared(0));
  }
}

TEST_F(NcclBuffersTest, WhereTheRanksDoNotAgreeItProposesItselfAgain) {
  const std::array first = {add(0, 100), add(1, 100)};
  std::byte* const longer = add(1, 200);
  for (const WindowPlan& plan : plans(submit({{first[0], longer}}))) EXPECT_FALSE(plan.changes());
  for (const WindowPlan& plan : plans(submit({first}))) EXPECT_EQ(plan.begins.size(), 1U);
}

TEST_F(NcclBuffersTest, ATensorIsApartAlsoFromAWindowThatBeginsWithItsUnit) {
  const std::array first = {add(0, 100), add(1, 100)};
  const std::array parts = {first[0] + 36, first[1] + 36};
  for (const WindowPlan& plan : plans(submit({parts, first}))) {
    EXPECT_EQ(plan.begins.size(), 1U);
    EXPECT_EQ(plan.apart, (std::vector{true, false}));
    EXPECT_EQ(plan.shared, (std::vector{false, true}));
  }
}

TEST_F(NcclBuffersTest, WhatIsGivenBackStaysUntilBothRanksSaySo) {
  const std::array first = {add(0, 100), add(1, 100)};
  const std::array second = {add(0, 100), add(1, 100)};
  const std::byte* const never = add(0, 100);
  EXPECT_TRUE(of(0).give_back(const_cast<std::byte*>(never)));
  plans(submit({first, second}));
  EXPECT_FALSE(of(0).give_back(first[0]));
  for (const WindowPlan& plan : plans(submit({second}))) EXPECT_FALSE(plan.changes());
  EXPECT_FALSE(of(1).give_back(first[1]));
  const Submitted one = submit({second});
  const Submitted late = submit({second});  // names it, too
  for (const WindowPlan& plan : plans(one)) EXPECT_EQ(plan.ends, std::vector<std::uint32_t>{1});
  for (const WindowPlan& plan : plans(late)) EXPECT_FALSE(plan.changes());
  EXPECT_EQ(gpu_.nccl_count("mem_free"), 1);
  of(0).carry_out({.ends = {1}}, gpu_.nccl());
  EXPECT_EQ(gpu_.nccl_count("mem_free"), 2);
}

TEST_F(NcclBuffersTest, KnowsWhatLiesInWindows) {
  const std::array first = {add(0, 100), add(1, 100)};
  EXPECT_FALSE(of(0).in_window(first[0]));
  plans(submit({first}));
  EXPECT_TRUE(of(0).has_windows());
  EXPECT_TRUE(of(0).in_window(first[0]));
  EXPECT_TRUE(of(0).in_window(first[0] + 99));
  EXPECT_FALSE(of(0).in_window(first[0] + 100));
  EXPECT_FALSE(of(0).in_window(first[0] - 1));
  EXPECT_FALSE(of(0).in_window(nullptr));
  of(0).end_windows();
  EXPECT_FALSE(of(0).in_window(first[0]));
  EXPECT_EQ(of(0).place(first[0]), Location{});
}

TEST_F(NcclBuffersTest, WithoutWindowsNothingHasAPlace) {
  NcclBuffers off;
  RegisteredMemory memory(gpu_.nccl(), communicator_, 100);
  std::byte* const data = memory.data();
  off.add(std::move(memory));
  EXPECT_EQ(off.place(data), Location{});
  EXPECT_EQ(of(0).place(nullptr), Location{});
  EXPECT_TRUE(off.give_back(data));
  EXPECT_TRUE(off.empty());
}

// Submitted in any order on the two ranks and several at once, but run in one order.
TEST_F(NcclBuffersTest, RanksAlwaysPlanAlike) {
  auto random = test::generator();
  std::vector<std::array<std::byte*, 2>> live;
  std::vector<Submitted> in_flight;
  for (int step = 0; step < 3000; ++step) {
    const auto which = random() % 4;
    if (which == 0 && live.size() < 6) {
      live.push_back({add(0, 64 + random() % 2), add(1, 64)});
    } else if (which == 1 && !live.empty() && in_flight.empty()) {
      auto& buffer = live[random() % live.size()];
      const std::size_t rank = random() % 2;  // the other one does so later, or never
      static_cast<void>(of(static_cast<int>(rank)).give_back(buffer[rank]));
      buffer[rank] = add(static_cast<int>(rank), 64);
    } else if (which == 2 && !live.empty()) {
      const auto one = live[random() % live.size()];
      const auto other = live[random() % live.size()];
      in_flight.push_back(submit({random() % 5 == 0 ? std::array{one[0], other[1]} : one}));
    } else if (!in_flight.empty()) {
      const auto [first, second] = plans(in_flight.front());
      in_flight.erase(in_flight.begin());
      ASSERT_EQ(first.ends, second.ends);
      ASSERT_EQ(first.begins.size(), second.begins.size());
      for (std::size_t i = 0; i < first.begins.size(); ++i) {
        ASSERT_EQ(first.begins[i]->bytes(), second.begins[i]->bytes());
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal
