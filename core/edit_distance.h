/// How far two names are from each other, for "did you mean". Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace hora::internal {

/// Levenshtein's distance: the fewest insertions, deletions and replacements from `a` to `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace hora::internal
