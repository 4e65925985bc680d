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
/// the lengths, and nothing is sent for an empty span. Thread rule: as CrossGroup.
class DirectExchange : public CrossWork {
 public:
  /// `sends`, `receives`: by member; the own ones are ignored.
  DirectExchange(CrossResources& resources, std::span<const std::span<const std::byte>> sends,
                 std::span<const std::span<std::byte>> receives, std::uint64_t sequence);
  bool poll() override;
};

DirectExchange::DirectExchange(CrossResources& resources,
                               std::span<const std::span<const std::byte>> sends,
                               std::span<const std::span<std::byte>> receives,
                               std::uint64_t sequence)
    : CrossWork(resources, sequence) {
  const int own_index = link().index();
  const int members = link().size();
  for (int k = 1; k < members; ++k) {
    const int from =
        (own_index + members - k) % members;  // the peer that begins with this member comes first
    receive(workspace().receives, from, kExchange, receives[static_cast<std::size_t>(from)]);
  }
  for (int k = 1; k < members; ++k) {
    const int to = (own_index + k) % members;
    send(workspace().sends, to, kExchange, sends[static_cast<std::size_t>(to)]);
  }
}

bool DirectExchange::poll() {
  return workspace().receives.drained(link()) && workspace().sends.drained(link()) && finish();
}

}  // namespace

Completion start_exchange(CrossResources& resources,
                          std::span<const std::span<const std::byte>> sends,
                          std::span<const std::span<std::byte>> receives, std::uint64_t sequence) {
  return Completion(std::make_unique<DirectExchange>(resources, sends, receives, sequence));
}

}  // namespace hora::internal
