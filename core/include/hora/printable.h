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

/// Longer texts are cut.
inline constexpr std::size_t kLongestMessage = std::size_t{16} << 10;
inline constexpr std::size_t kLongestQuotation = 1024;

/// `text` with escapes in place of what a terminal or a reader of lines could act on, and of bytes
/// that are no UTF-8: control characters (`\n`, `\x1b`, `\u009b`), Unicode's ends of lines and its
/// changes of direction (`\u2028`, `\u202e`), others (`\xff`). Of more than `longest` bytes (64 at
/// least) the middle is left out, and how many bytes that are stands in its place. Applied once
/// more it changes nothing.
std::string printable(std::string_view text, std::size_t longest = kLongestMessage);

/// A name or a value within a message: printable, cut, between quotation marks.
std::string in_quotes(std::string_view text);

}  // namespace hora
