/// Whether a rank's tensors lie in an arena, and how long it may become. Pure; knows no LibTorch.
#pragma once

#include <hora/settings.h>

#include <cstddef>
#include <cstdint>

namespace hora::internal {

struct ArenaFacts {
  TensorArenaUse setting = TensorArenaUse::automatic;
  bool on_cpu = true;  ///< ranks compute there
  int ranks = 1;
  int nodes = 1;
};

/// The same on all ranks.
bool arena_is_wanted(const ArenaFacts& facts);

/// Bytes; `setting`: Settings::tensor_arena_limit; the host has `memory` bytes.
std::size_t arena_limit(std::size_t setting, std::uint64_t memory, int local_ranks);

}  // namespace hora::internal
