/// Texts of unknown origin in messages.
///
///     std::cerr << "cannot read " << hora::in_quotes(path) << '\n';
///
/// Thread rule: any thread.
#pragma once

#include <hora/export.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace HORA_EXPORT hora {

inline constexpr std::size_t kLongestMessage = std::size_t{16} << 10;
inline constexpr std::size_t kLongestQuotation = 1024;

/// Escapes what a terminal or a reader of lines could act on, and bytes that are no UTF-8: control
/// characters (`\n`, `\x1b`), Unicode's ends of lines and changes of direction (`\u2028`). Replaces
/// the middle of more than `longest` (>= 64) bytes by their number. Idempotent.
std::string printable(std::string_view text, std::size_t longest = kLongestMessage);

/// Returns a name or value for a message: printable, cut, between quotation marks.
std::string in_quotes(std::string_view text);

}  // namespace hora
