/// Each member's own bytes to each other member.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ops/cross/cross_work.h"

namespace hora::internal {
namespace {

constexpr int kExchange = 0;

/// One message for each pair of members that have something for each other, at most n - 1 out of
/// and n - 1 into a member, all at once and each member beginning with another peer. Both ends know
/// the lengths, and nothing is sent for an empty part. Thread rule: as CrossGroup.
class DirectSend : public CrossWork {
 public:
  DirectSend(CrossResources& resources, std::span<const std::span<const std::byte>> parts,
             std::uint64_t sequence)
      : CrossWork(resources, sequence) {
    const int members = link().size();
    for (int k = 1; k < members; ++k) {
      const int to = (link().index() + k) % members;
      send(workspace().sends, to, kExchange, parts[static_cast<std::size_t>(to)]);
    }
  }
  bool poll() override { return workspace().sends.drained(link()) && finish(); }
};

/// Likewise the other half.
class DirectReceive : public CrossWork {
 public:
  DirectReceive(CrossResources& resources, std::span<const std::span<std::byte>> parts,
                std::uint64_t sequence)
      : CrossWork(resources, sequence, CrossResources::Half::receives) {
    const int members = link().size();
    for (int k = 1; k < members; ++k) {
      // The peer that begins with this member comes first.
      const int from = (link().index() + members - k) % members;
      receive(workspace().receives, from, kExchange, parts[static_cast<std::size_t>(from)]);
    }
  }
  bool poll() override { return workspace().receives.drained(link()) && finish(); }
};

}  // namespace

Completion start_send(CrossResources& resources, std::span<const std::span<const std::byte>> parts,
                      std::uint64_t sequence) {
  return Completion(std::make_unique<DirectSend>(resources, parts, sequence));
}

Completion start_receive(CrossResources& resources, std::span<const std::span<std::byte>> parts,
                         std::uint64_t sequence) {
  return Completion(std::make_unique<DirectReceive>(resources, parts, sequence));
}

}  // namespace hora::internal
