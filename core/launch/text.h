/// Texts that a user gives: the small parts of which options consist, and small files that options
/// name. Nothing is expanded, nothing goes through a shell. Pure, but for read_input_file().
#pragma once

#include <hora/error.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace hora::launch {

/// Thrown by readers of a user's text: what is wrong with it, and what was expected.
struct Refused {
  std::string why;
};

/// The value; throws the error as Refused.
template <class T>
T or_refuse(tl::expected<T, std::string> result) {
  if (!result) throw Refused{std::move(result.error())};
  return std::move(*result);
}

/// read()'s value, or why it is Refused or what Error it has thrown.
template <class Read>
auto expected_of(Read&& read) -> tl::expected<decltype(read()), std::string> {
  try {
    return read();
  } catch (Refused& refused) {
    return tl::unexpected(std::move(refused.why));
  } catch (const Error& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

/// Without spaces, tabs and ends of lines around it.
std::string_view trimmed(std::string_view text);

/// The parts between separators; one part, the whole, where there is none. Views of `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The words between spaces and tabs; none is empty. Views of `text`.
std::vector<std::string_view> split_at_spaces(std::string_view text);

/// True for one of the words between spaces.
bool lists(std::string_view words, std::string_view word);

/// "a, b and 3 more": of more than `most` names the first ones, and how many others there are.
std::string first_of(std::vector<std::string> names, std::size_t most);

/// Lines of columns, two spaces apart, of rows of equal length. `alignment`: '<' or '>' by column.
std::string aligned(const std::vector<std::vector<std::string>>& rows, std::string_view alignment);

/// Whether there is a character, and all are ASCII letters, digits, or of `more`.
bool is_made_of(std::string_view text, std::string_view more) noexcept;

/// Names of environment variables: [A-Z_a-z][A-Za-z0-9_]*, as POSIX has it (XBD 8.1) and shells
/// accept it.
bool is_variable_name(std::string_view name) noexcept;

/// True where it may stand on a command line as a host: a name or an IPv4 address of
/// [A-Za-z0-9._-] that is no option.
bool is_host_name(std::string_view name) noexcept;

/// A decimal whole number, no sign but a leading `-`. The error is what was expected.
tl::expected<int, std::string> parse_integer(std::string_view text, int least, int most);

/// Words as a POSIX shell splits them, where quotes and backslashes protect: 'a b' "c d" e\ f.
/// Variables, wildcards and commands are not expanded. The error says which quote is not closed.
tl::expected<std::vector<std::string>, std::string> split_words(std::string_view text);

inline constexpr std::size_t kLargestInputFile = std::size_t{1} << 20;

/// A hostfile, a config file: the whole of a file, or of a pipe such as bash's <(command). Never
/// waits longer than 10 s for more. The error says what is wrong with it, without the path.
tl::expected<std::string, std::string> read_input_file(const std::string& path,
                                                       std::size_t largest = kLargestInputFile);

}  // namespace hora::launch
