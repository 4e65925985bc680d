/// Names of environment variables.
#pragma once

#include <algorithm>
#include <string_view>

namespace hora::launch {

/// [A-Z_a-z][A-Za-z0-9_]*, as POSIX has it (XBD 8.1) and shells accept it.
inline bool is_variable_name(std::string_view name) noexcept {
  const auto is_letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return !name.empty() && is_letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

}  // namespace hora::launch
