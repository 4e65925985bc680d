/// Broadcast between nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cross/cross_work.h"

namespace hora {

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

}  // namespace hora
