// What ranks tell one another before exchanges on devices, the ranks in one thread that goes on
// with any of them at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "ops/hierarchy/exchange_run.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/ops/hierarchy/exchange_model.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"

namespace hora::internal {
namespace {

using test::at;
using Rows = std::vector<std::vector<std::int64_t>>;  ///< by rank

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};
constexpr std::size_t kMostPolls = 100000;

/// The ranks' places in their nodes, without devices.
class Agreements : public testing::TestWithParam<std::vector<std::vector<int>>> {
 protected:
  Agreements() {
    for (int slice = 0; slice < topology_.smallest_node(); ++slice) {
      meetings_.emplace_back(topology_.nodes());
    }
    ranks_.resize(at(topology_.size()));
    for (int node = 0; node < topology_.nodes(); ++node) {
      const auto& members = topology_.ranks_of_node[at(node)];
      const int size = static_cast<int>(members.size());
      Node& made = nodes_.emplace_back(size);
      for (int local = 0; local < size; ++local) {
        ranks_[at(members[at(local)])] = std::make_unique<Rank>(
            topology_, made, node, local,
            local < topology_.smallest_node() ? &meetings_[at(local)] : nullptr);
      }
    }
  }

  Rows random_rows(OperationKind kind) {
    Rows rows;
    const auto whole = static_cast<std::int64_t>(random_() % 9);
    for (int rank = 0; rank < topology_.size(); ++rank) {
      auto& own = rows.emplace_back(extents_of_rank(kind, topology_.size()));
      for (std::int64_t& extent : own) {
        extent = kind == OperationKind::reduce_scatter ? whole
                                                       : static_cast<std::int64_t>(random_() % 9);
      }
    }
    return rows;
  }

  /// One exchange, of which every rank must learn alike: all extents, and who lacks memory.
  void agree(OperationKind kind, const Rows& rows, const std::vector<bool>& has_memory,
             bool repeats = false) {
    int first = ExchangeAgreement::kNoRank;
    for (int rank = topology_.size() - 1; rank >= 0; --rank) {
      if (!has_memory[at(rank)]) first = rank;
    }
    std::vector<std::uint32_t> words(ranks_.size());
    for (auto& rank : ranks_) rank->begin(topology_, kind, rows, words, repeats);
    std::size_t done = 0;
    for (std::size_t polls = 0; done < ranks_.size(); ++polls) {
      ASSERT_LT(polls, kMostPolls) << "no end";
      Rank& rank = *ranks_[random_() % ranks_.size()];
      if (rank.answer) continue;
      const ExchangeExtents* const extents = rank.agreement->extents();
      if (!extents) continue;
      ASSERT_EQ(extents->kind, kind);
      for (std::size_t other = 0; other < rows.size(); ++other) {
        ASSERT_TRUE(std::ranges::equal(extents->rows[other], rows[other])) << "rank " << other;
      }
      if (!rank.told) rank.agreement->tell(has_memory[at(rank.number)]);
      rank.told = true;
      rank.answer = rank.agreement->lacking();
      if (!rank.answer) continue;
      ++done;
      EXPECT_EQ(*rank.answer, first);
    }
    const bool are_told = extents_may_differ(kind) && !repeats;
    for (auto& rank : ranks_) {
      ASSERT_EQ(rank->agreement->rounds(), are_told ? 2u : 1u);
      rank->context.rounds_done += rank->agreement->rounds();
      rank->sequence += rank->agreement->rounds();
    }
  }

  struct Node {
    explicit Node(int size)
        : control_block({.local_size = size, .id_capacity = 8, .single_node = false}),
          memory(size) {}
    test::SharedControlBlock control_block;
    test::HeapNode memory;
  };
  struct Rank {
    Rank(const Topology& topology, Node& node, int of_node, int local_rank, test::Meeting* meeting)
        : number(topology.ranks_of_node[at(of_node)][at(local_rank)]),
          memory(node.memory, local_rank),
          context{.topology = topology,
                  .node = of_node,
                  .local_rank = local_rank,
                  .slices = topology.smallest_node(),
                  .rounds = node.control_block[local_rank].exchange_rounds(),
                  .memory = ExchangeMemory(memory)} {
      if (meeting) cross = std::make_unique<test::MeetingCrossGroup>(*meeting, of_node);
      context.cross = cross.get();
    }
    void begin(const Topology& topology, OperationKind kind, const Rows& rows,
               std::vector<std::uint32_t>& words, bool repeats = false) {
      unit.clear();
      unit.unit.kind = kind;
      unit.exchange = {};
      unit.exchange.row_bytes = 4;
      unit.exchange.last = last;
      unit.exchange.repeats = repeats;
      for (const int rank : topology.ranks_of_node[at(context.node)]) {
        unit.exchange.rows.emplace_back(rows[at(rank)]);
        unit.exchange.room.emplace_back(words[at(rank)]);
      }
      told = false;
      answer.reset();
      agreement = std::make_unique<AgreementOverNodes>(unit, context, sequence);
    }

    int number;
    test::HeapMemory memory;
    std::unique_ptr<test::MeetingCrossGroup> cross;
    ExchangeContext context;
    BoundUnit unit;
    std::shared_ptr<LastExtents> last = std::make_shared<LastExtents>();
    std::uint64_t sequence = 0;
    std::unique_ptr<AgreementOverNodes> agreement;
    bool told = false;
    std::optional<int> answer;
  };

  std::mt19937_64 random_ = test::generator();
  Topology topology_{GetParam()};
  std::deque<test::Meeting> meetings_;
  std::deque<Node> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_P(Agreements, EveryRankLearnsTheSame) {
  for (int round = 0; round < 300; ++round) {
    const OperationKind kind = kKinds[random_() % std::size(kKinds)];
    std::vector<bool> has_memory;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      has_memory.push_back(random_() % 4 > 0);
    const Rows rows = random_rows(kind);
    ASSERT_NO_FATAL_FAILURE(agree(kind, rows, has_memory));
    if (random_() % 2 == 0) continue;
    ASSERT_NO_FATAL_FAILURE(agree(kind, rows, has_memory, /*repeats=*/true));
  }
}

TEST_P(Agreements, NoRankIsToldBeforeTheLastHasAnswered) {
  const Rows rows(ranks_.size(), {3});
  std::vector<std::uint32_t> words(ranks_.size());
  for (auto& rank : ranks_) {
    rank->begin(topology_, OperationKind::reduce_scatter, rows, words);
    ASSERT_NE(rank->agreement->extents(), nullptr) << "every rank has the same";
    if (rank != ranks_.back()) rank->agreement->tell(true);
  }
  for (int polls = 0; polls < 1000; ++polls) {
    ASSERT_FALSE(ranks_[random_() % ranks_.size()]->agreement->lacking());
  }
  ranks_.back()->agreement->tell(true);
  for (std::size_t polls = 0; polls < kMostPolls && !ranks_.front()->answer; ++polls) {
    for (auto& rank : ranks_) {
      if (!rank->answer) rank->answer = rank->agreement->lacking();
    }
  }
  EXPECT_EQ(ranks_.front()->answer, ExchangeAgreement::kNoRank);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Agreements,
                         testing::Values(std::vector<std::vector<int>>{{0}, {1}},
                                         std::vector<std::vector<int>>{{0, 1}, {2}},
                                         std::vector<std::vector<int>>{{0, 2}, {1, 3}},
                                         std::vector<std::vector<int>>{{0, 3, 5}, {1, 4}, {2, 6}}));

TEST(AgreementInNode, IsWhatTheHeadersSay) {
  const std::vector<std::vector<std::int64_t>> rows = {{1}, {2}, {3}};
  std::array<std::uint32_t, 3> words{};
  BoundUnit unit;
  unit.unit.kind = OperationKind::allgather;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    unit.exchange.rows.emplace_back(rows[rank]);
    unit.exchange.room.emplace_back(words[rank]);
  }
  std::deque<AgreementInNode> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(unit, rank);
  ASSERT_NE(ranks[0].extents(), nullptr);
  EXPECT_EQ(ranks[0].extents()->rows[2][0], 3);
  ranks[0].tell(true);
  ranks[2].tell(false);
  EXPECT_FALSE(ranks[0].lacking());
  ranks[1].tell(true);
  for (AgreementInNode& rank : ranks) EXPECT_EQ(rank.lacking(), 2);
}

}  // namespace
}  // namespace hora::internal
