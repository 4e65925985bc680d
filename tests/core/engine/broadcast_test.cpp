// Broadcasts whose ranks give their memory in different ways: callers that wait, handles, and
// memory in the node's windows.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/core/engine/on_layouts.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Way;

struct Broadcast {
  std::string name;
  int root;
  std::size_t bytes;
  std::vector<Way> ways;  ///< by rank
};

std::byte value_of(const Broadcast& broadcast, std::size_t i) {
  return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(broadcast.root) + 1);
}

/// One rank's part of a broadcast.
class Part {
 public:
  Part(const Broadcast& broadcast, int rank, NodeMemory& memory)
      : broadcast_(broadcast),
        way_(broadcast.ways[static_cast<std::size_t>(rank)]),
        memory_(memory),
        own_(broadcast.bytes) {
    data_ = own_.data();
    if (way_ == Way::window) data_ = block_ = memory_.allocate(broadcast.bytes).data;
    for (std::size_t i = 0; i < broadcast.bytes; ++i) {
      data_[i] = rank == broadcast.root ? value_of(broadcast, i) : std::byte{0};
    }
  }
  ~Part() {
    if (block_) memory_.release(block_);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  void submit(Engine& engine) {
    Signature signature;
    signature.kind = OperationKind::broadcast;
    signature.type = DataType::uint8;
    signature.root = broadcast_.root;
    signature.shape = {static_cast<std::int64_t>(broadcast_.bytes)};
    if (way_ == Way::waits) {
      engine.submit_and_wait(broadcast_.name, signature, data_);
    } else {
      submission_ = engine.submit(broadcast_.name, signature, data_);
    }
  }
  void expect_right(Engine& engine) {
    if (submission_) engine.wait(*submission_);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < broadcast_.bytes; ++i) wrong += data_[i] != value_of(broadcast_, i);
    EXPECT_EQ(wrong, 0U) << broadcast_.name << " of " << broadcast_.bytes;
  }

 private:
  const Broadcast& broadcast_;
  Way way_;
  NodeMemory& memory_;
  std::vector<std::byte> own_;
  std::byte* data_ = nullptr;
  std::byte* block_ = nullptr;
  std::shared_ptr<Submission> submission_;
};

class BroadcastOnLayouts : public test::OnLayouts {};

// Those of ranks that wait are fetched; several may travel in one message with others that are not.
TEST_P(BroadcastOnLayouts, EveryMixtureOfWaysGivesTheRootsBytes) {
  auto random = test::generator();
  constexpr std::size_t kSizes[] = {
      0, 63, 4096, 100'000, kFollowedBytes + 70'001, (std::size_t{1} << 20) + 5};
  std::vector<std::vector<Broadcast>> groups;
  for (int g = 0; g < 40; ++g) {
    auto& group = groups.emplace_back();
    const int root = static_cast<int>(random() % static_cast<unsigned>(world_.size()));
    for (int i = 0; i < 3; ++i) {
      // Names are used again, in other ways.
      group.push_back(
          {.name = std::to_string(g % 7) + "." + std::to_string(i) + "." + std::to_string(root),
           .root = root,
           .bytes = kSizes[random() % std::size(kSizes)],
           .ways = {}});
      for (int rank = 0; rank < world_.size(); ++rank) {
        // A caller that waits cannot bring the next one: so the last of the group alone.
        group.back().ways.push_back(static_cast<Way>(random() % 3));
        if (i < 2 && group.back().ways.back() == Way::waits) group.back().ways.back() = Way::handle;
      }
    }
  }
  test::run_groups<Part>(world_, groups);
}

INSTANTIATE_TEST_SUITE_P(Nodes, BroadcastOnLayouts,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}),
                         test::layout_name);

}  // namespace
}  // namespace hora::internal
