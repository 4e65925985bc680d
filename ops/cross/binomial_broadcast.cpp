/// Broadcast between nodes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ops/cross/cross_work.h"

namespace hora::internal {
namespace {

constexpr int kDown = 0;

/// Down a binomial tree that is rooted at `root`: ceil(log2 n) hops, each member receives the data
/// once. Long data is cut into chunks by the caller, whose broadcasts then follow each other down
/// the tree. Thread rule: as CrossGroup.
class BinomialBroadcast : public CrossWork {
 public:
  BinomialBroadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                    std::uint64_t sequence);
  bool poll() override;

 private:
  void send_to_children();

  std::span<std::byte> staging_;
  int root_;
  int position_;  // counted from the root
  int members_;
  bool sent_ = false;
};

// The parent of position p is p without its lowest set bit; its children are p + 2^k for every 2^k
// below that bit (for the root: below n).
BinomialBroadcast::BinomialBroadcast(CrossResources& resources, std::span<std::byte> staging,
                                     int root, std::uint64_t sequence)
    : CrossWork(resources, sequence),
      staging_(staging),
      root_(root),
      position_((link().index() - root + link().size()) % link().size()),
      members_(link().size()) {
  if (position_ != 0) {
    const int parent = position_ & (position_ - 1);
    receive(workspace().receives, (parent + root_) % members_, kDown, staging_);
  }
}

void BinomialBroadcast::send_to_children() {
  const int lowest_bit = position_ & -position_;
  int bit = 1;
  while (bit < members_ && (position_ == 0 || bit < lowest_bit)) {
    bit *= 2;
  }
  // The child with the deepest subtree first.
  for (bit /= 2; bit > 0; bit /= 2) {
    if (position_ + bit < members_) {
      send(workspace().sends, (position_ + bit + root_) % members_, kDown, staging_);
    }
  }
}

bool BinomialBroadcast::poll() {
  if (!workspace().receives.drained(link())) {
    return false;
  }
  if (!sent_) {
    send_to_children();
    sent_ = true;
  }
  return workspace().sends.drained(link()) && finish();
}

}  // namespace

Completion start_broadcast(CrossResources& resources, std::span<std::byte> staging, int root,
                           std::uint64_t sequence) {
  return Completion(std::make_unique<BinomialBroadcast>(resources, staging, root, sequence));
}

}  // namespace hora::internal
