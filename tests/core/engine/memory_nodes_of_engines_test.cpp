// Sums of engines whose node has several memory nodes.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "tests/core/engine/engine_fixture.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Way;

struct Sum {
  std::string name;
  std::int64_t count;
  std::uint64_t seed;
  std::vector<Way> ways;  ///< by rank
};

std::vector<float> values_of(const Sum& sum, int rank) {
  // Cheap, for there are many: high bits of multiples of an odd number.
  std::uint64_t bits = sum.seed + static_cast<std::uint64_t>(rank);
  std::vector<float> values(static_cast<std::size_t>(sum.count));
  for (float& value : values) {
    bits += 0x9e3779b97f4a7c15;
    value = static_cast<float>(static_cast<std::int32_t>(bits >> 32)) * 0x1p-28F;
  }
  return values;
}

/// In the order of local ranks.
std::vector<float> total_of(const Sum& sum, int ranks) {
  std::vector<float> total = values_of(sum, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> values = values_of(sum, rank);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += values[i];
  }
  return total;
}

/// One rank's part of a sum.
class Part {
 public:
  Part(const Sum& sum, int rank, NodeMemory& memory)
      : sum_(sum),
        way_(sum.ways[static_cast<std::size_t>(rank)]),
        memory_(memory),
        own_(values_of(sum, rank)),
        data_(test::bytes(own_)) {
    if (way_ != Way::window) return;
    data_ = block_ = memory_.allocate(bytes()).data;
    std::memcpy(data_, own_.data(), bytes());
  }
  ~Part() {
    if (block_) memory_.release(block_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void submit(Engine& engine) {
    const Signature signature = test::floats(sum_.count);
    if (way_ == Way::waits) {
      engine.submit_and_wait(sum_.name, signature, data_);
    } else {
      submission_ = engine.submit(sum_.name, signature, data_);
    }
  }
  void expect_right(Engine& engine) {
    if (submission_) engine.wait(*submission_);
    const std::vector<float> total = total_of(sum_, static_cast<int>(sum_.ways.size()));
    EXPECT_EQ(std::memcmp(data_, total.data(), bytes()), 0) << sum_.name << " of " << sum_.count;
  }

 private:
  std::size_t bytes() const { return own_.size() * sizeof(float); }

  const Sum& sum_;
  Way way_;
  NodeMemory& memory_;
  std::vector<float> own_;
  std::byte* data_ = nullptr;
  std::byte* block_ = nullptr;
  std::shared_ptr<Submission> submission_;
};

/// The parameter: ranks of the node, of which two share each memory node.
class MemoryNodesOfEngines : public testing::TestWithParam<int> {
 protected:
  static test::ThreadWorldOptions options() {
    test::ThreadWorldOptions result{.node_sizes = {GetParam()}, .settings = {}};
    result.settings.ranks_per_memory_node = 2;
    return result;
  }
  test::ThreadWorld world_{options()};
  std::mt19937_64 random_ = test::generator();
};

constexpr std::int64_t kLarge = MemoryNodes::kLeastBytes / sizeof(float);

TEST_P(MemoryNodesOfEngines, EveryMixtureOfWaysGivesTheSumInRankOrder) {
  const std::int64_t counts[] = {1, 1000, kLarge - 1, kLarge, kLarge + 1, 2 * kLarge + 77};
  std::vector<std::vector<Sum>> groups;
  for (int g = 0; g < 6; ++g) {
    auto& group = groups.emplace_back();
    for (int i = 0; i < 3; ++i) {
      group.push_back({.name = std::to_string(g % 2) + "." + std::to_string(i),
                       .count = counts[random_() % std::size(counts)],
                       .seed = random_(),
                       .ways = {}});
      for (int rank = 0; rank < world_.size(); ++rank) {
        // A caller that waits cannot bring the next one: so the last of the group alone.
        group.back().ways.push_back(static_cast<Way>(random_() % 3));
        if (i < 2 && group.back().ways.back() == Way::waits) group.back().ways.back() = Way::handle;
      }
    }
  }
  test::run_groups<Part>(world_, groups);
}

// Broadcasts and sums announce what is readable in the same words.
TEST_P(MemoryNodesOfEngines, BroadcastsComeBetween) {
  test::on_all_ranks(world_, [&](int rank) {
    Engine& engine = world_.engine(rank);
    for (int round = 0; round < 4; ++round) {
      const auto whole = static_cast<float>(round + 1);
      std::vector<float> sum(kLarge, whole), sent(kFollowedBytes / sizeof(float), 0.0F);
      Signature broadcast = test::floats(std::ssize(sent));
      broadcast.kind = OperationKind::broadcast;
      broadcast.root = round % world_.size();
      if (rank == broadcast.root) std::ranges::fill(sent, whole);
      engine.submit_and_wait("sum", test::floats(kLarge), test::bytes(sum));
      engine.submit_and_wait("sent." + std::to_string(broadcast.root), broadcast,
                             test::bytes(sent));
      EXPECT_EQ(sum, std::vector<float>(kLarge, whole * static_cast<float>(world_.size())));
      EXPECT_EQ(sent, std::vector<float>(sent.size(), whole));
    }
  });
}

TEST_P(MemoryNodesOfEngines, RanksThatHaveJoinedAreLeftOut) {
  const int leaves = static_cast<int>(random_() % static_cast<unsigned>(world_.size()));
  test::on_all_ranks(world_, [&](int rank) {
    Engine& engine = world_.engine(rank);
    const auto expect_sum = [&](int ranks) {
      std::vector<float> values(kLarge, 1.0F);
      engine.submit_and_wait("sum", test::floats(kLarge), test::bytes(values));
      EXPECT_EQ(values, std::vector<float>(kLarge, static_cast<float>(ranks)));
    };
    expect_sum(world_.size());
    if (rank != leaves) {
      for (int round = 0; round < 3; ++round) expect_sum(world_.size() - 1);
    }
    engine.join(kWorld);
    expect_sum(world_.size());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryNodesOfEngines, testing::Values(4, 6));

}  // namespace
}  // namespace hora::internal
