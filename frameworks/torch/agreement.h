/// Do all ranks average the same parameters?
#pragma once

#include <hora/context.h>

#include <span>
#include <string>

namespace hora {

/// Of the error's text: what it is that differs, in the plural, and what to do.
struct Agreement {
  std::string what;
  std::string advice;
};

/// Collective. Compares `lines` with rank 0's; where any rank's differ, every rank throws the same
/// Error(mismatch), which names the first differing line, the first rank that has another one, and
/// both. `name` is the prefix of the collectives' names.
void check_agreement(const Context& context, const Agreement& agreement, const std::string& name,
                     std::span<const std::string> lines);

}  // namespace hora
