/// The ranks that average together.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>

namespace hora {

/// A process set, as one of its members sees it. The context must outlive it.
struct Peers {
  const Context& context;
  ProcessSet set = 0;
  int size = 1;
  int rank_in_set = 0;  ///< this rank's among them
  int first = 0;        ///< world rank
};

/// Throws Error(invalid_argument) where this rank is no member, or the set does not exist.
Peers peers_of(const Context& context, ProcessSet set);

}  // namespace hora
