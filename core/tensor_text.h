/// How messages speak of ranks, and of what is in flight under a name.
#pragma once

#include <hora/export.h>

#include <span>
#include <string>
#include <string_view>

namespace hora::internal {

/// What the engine calls collectives that were given no name, followed by kind and number.
inline constexpr std::string_view kUnnamedPrefix = "hora.unnamed.";
/// Of hora's own calls.
inline constexpr std::string_view kJoinName = "hora.join";
inline constexpr std::string_view kAddSetName = "hora.process_sets.add";
inline constexpr std::string_view kRemoveSetName = "hora.process_sets.remove";

/// `tensor "weight"`; for names that no user has given what was called: "the unnamed allreduce",
/// "the unnamed barrier in slot 1" (slot 0 was in flight), "join()"; for none "an unnamed
/// tensor".
HORA_EXPORT std::string tensor_text(std::string_view name);

/// "0-2, 5" for ascending ranks.
std::string ranks_text(std::span<const int> ranks);
/// "rank 3", or "ranks 0-2".
HORA_EXPORT std::string named_ranks(std::span<const int> ranks);
/// "rank 3 has", or "ranks 0-2 have".
std::string ranks_have(std::span<const int> ranks);

}  // namespace hora::internal
