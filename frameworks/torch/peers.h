/// The ranks that average together, and whether they agree; objects.cpp.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hora::internal {

/// A process set, as one of its members sees it. The context must outlive it.
struct Peers {
  const Context& context;
  ProcessSet set = kWorld;
  int size = 1;
  int rank_in_set = 0;  ///< this rank's among them
  int first = 0;        ///< world rank
};

/// Throws Error(invalid_argument) where this rank is no member, or the set does not exist.
Peers peers_of(const Context& context, ProcessSet set);

/// Words for the error's text: the subject that differs, in the plural, and what to do.
struct Agreement {
  std::string what;
  std::string advice;
};

/// Collective. Compares `lines` with the first rank's; where any rank's differ, every rank throws
/// the same Error(mismatch), which names the first differing line, the first rank that has another
/// one, and both. `name` is the prefix of the collectives' names.
void check_agreement(const Peers& peers, const Agreement& agreement, const std::string& name,
                     const std::vector<std::string>& lines);

/// Handles and buffers wait for nothing while an exception unwinds the stack (handle.h, buffer.h):
/// so one does. What peers may still write to stays allocated.
template <class T>
void abandon(std::unique_ptr<T> object) noexcept {
  struct LettingGo {};
  try {
    const std::unique_ptr<T> unwound = std::move(object);
    throw LettingGo{};
  } catch (const LettingGo&) {
  }
}

}  // namespace hora::internal
