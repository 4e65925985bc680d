#include "frameworks/torch/memory/arena_use.h"

namespace hora::internal {

bool arena_is_wanted(const ArenaFacts& facts) {
  switch (facts.setting) {
    case TensorArenaUse::off:
      return false;
    case TensorArenaUse::on:
      return true;
    case TensorArenaUse::automatic:
      return facts.on_cpu && facts.ranks > facts.nodes;
  }
  return false;
}

std::size_t arena_limit(std::size_t setting, std::uint64_t memory, int local_ranks) {
  return setting != 0 ? setting : memory / 2 / static_cast<std::size_t>(local_ranks);
}

}  // namespace hora::internal
