/// Each member's own bytes to each other member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cross/cross_work.h"

namespace hora {

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

}  // namespace hora
