/// Names of hosts.
#pragma once

#include <algorithm>
#include <string_view>

namespace hora::launch {

/// What may stand on a command line as a host: a name or an address of [A-Za-z0-9._:-] that is no
/// option.
inline bool is_host_name(std::string_view name) noexcept {
  constexpr std::size_t kLongest = 255;  // RFC 1035, 2.3.4
  const auto is_allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  };
  return !name.empty() && name.size() <= kLongest && name.front() != '-' &&
         std::ranges::all_of(name, is_allowed);
}

}  // namespace hora::launch
