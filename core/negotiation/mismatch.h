/// How to say that ranks disagree.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/messages/messages.h"

namespace hora {

/// "0-2, 5" for ascending ranks.
std::string ranks_text(std::span<const int> ranks);
/// "rank 3", or "ranks 0-2".
std::string named_ranks(std::span<const int> ranks);
/// "rank 3 has", or "ranks 0-2 have".
std::string ranks_have(std::span<const int> ranks);

/// One sentence naming the tensor, what differs, each value with its ranks (the first eight
/// values), and what to do.
std::string mismatch_text(const Report& report);

}  // namespace hora
