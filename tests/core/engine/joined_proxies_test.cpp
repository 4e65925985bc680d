// What a rank that has joined answers in the place of data.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <variant>

#include "core/engine/operations.h"
#include "tests/core/control_block/shared_control_block.h"

namespace hora::internal {
namespace {

using test::SharedControlBlock;

constexpr Id kGathered = make_id(1, 0);
constexpr Id kReduced = make_id(2, 0);

/// Rank 1 of two, which knows two names, has joined; rank 0 is the leader.
class JoinedProxiesOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    Signature gathered;
    gathered.kind = OperationKind::allgather;
    gathered.shape = {kAnyExtent};
    Signature reduced;
    reduced.shape = {8};
    table_.learn("gathered", kGathered, gathered);
    table_.learn("reduced", kReduced, reduced);
    proxies_.begin();
    EXPECT_EQ(next_mail().kind, MailKind::joined);
  }
  NodeControlBlock& block(int rank) { return blocks_[rank]; }
  bool has_mail() { return block(0).leader_has_pending_work(); }
  Mail next_mail() {
    const auto bytes = block(0).pop_mail(1);
    return bytes ? std::get<Mail>(decode(*bytes).value()) : Mail{};
  }

  SharedControlBlock blocks_{{.local_size = 2,
                              .id_capacity = 8,
                              .single_node = true,
                              .mailbox_bytes = 1024,
                              .control_bytes = 1024}};
  Tracer trace_;
  NameTable table_{8};
  std::atomic<int> undecided_{0};
  Announcer announcer_{block(1), true, trace_};
  JoinedProxies proxies_{block(1), table_, announcer_, undecided_};
};

TEST_F(JoinedProxiesOfTwo, AnswerWhatOthersAreReadyFor) {
  EXPECT_FALSE(proxies_.are_wanted());
  block(0).arrive(kGathered, kNowhere);
  EXPECT_TRUE(proxies_.submit());
  const Mail refusal = next_mail();
  EXPECT_EQ(refusal.name, "gathered");
  EXPECT_EQ(refusal.signature.kind, OperationKind::join);
  EXPECT_FALSE(proxies_.are_wanted()) << "refused once";
  EXPECT_EQ(block(0).arrive(kReduced, kNowhere), NodeControlBlock::Arrival::waiting);
  EXPECT_TRUE(proxies_.submit());
  EXPECT_NE(table_.waiting_for(kReduced), nullptr);
  EXPECT_TRUE(block(0).log_has_pending_work()) << "of all ranks of the node it was the last";
}

// Rank 0 has read in the log that all have joined, and submits again, before rank 1 has read it.
TEST_F(JoinedProxiesOfTwo, ReadTheLogBeforeTheyAnswer) {
  const std::array<std::byte, 8> all_have_joined{};
  ASSERT_TRUE(block(0).push_control(all_have_joined));
  block(0).arrive(kGathered, kNowhere);
  block(0).arrive(kReduced, kNowhere);
  EXPECT_TRUE(proxies_.submit()) << "there is something to do: the log";
  EXPECT_FALSE(has_mail());
  EXPECT_EQ(block(1).ready_ranks(kGathered), 0b01u);
  EXPECT_EQ(block(1).ready_ranks(kReduced), 0b01u);
  ASSERT_TRUE(block(1).next_batch().has_value());
  proxies_.end();
  EXPECT_EQ(block(1).ready_ranks(kReduced), 0b01u);
}

}  // namespace
}  // namespace hora::internal
