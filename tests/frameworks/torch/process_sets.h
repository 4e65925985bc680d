/// Process sets for tests: even and odd ranks.
#pragma once

#include <hora/hora.h>

#include <vector>

namespace hora::internal::test {

/// This rank's: with the ranks of its parity. Collective. A test ends with barrier(world): a rank
/// that shut down would end the other set's collectives.
struct ParitySet {
  explicit ParitySet(const Context& world) {
    for (int parity = 0; parity < 2 && parity < world.size(); ++parity) {
      std::vector<int> ranks;
      for (int rank = parity; rank < world.size(); rank += 2) ranks.push_back(rank);
      const ProcessSet set = add_process_set(world, ranks);
      if (world.rank() % 2 != parity) continue;
      id = set;
      members = ranks;
    }
    own_rank = rank_in(world, id);
  }

  ProcessSet id = kWorld;
  std::vector<int> members;
  int own_rank = 0;  ///< this rank's place among them
};

}  // namespace hora::internal::test
