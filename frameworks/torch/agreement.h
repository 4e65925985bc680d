/// Do all ranks average the same parameters?
#pragma once

#include <span>
#include <string>

#include "frameworks/torch/peers.h"

namespace hora {

/// Of the error's text: what it is that differs, in the plural, and what to do.
struct Agreement {
  std::string what;
  std::string advice;
};

/// Collective. Compares `lines` with the first rank's; where any rank's differ, every rank throws
/// the same Error(mismatch), which names the first differing line, the first rank that has another
/// one, and both. `name` is the prefix of the collectives' names.
void check_agreement(const Peers& peers, const Agreement& agreement, const std::string& name,
                     std::span<const std::string> lines);

}  // namespace hora
