#include "examples/vision/command_line.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vision {
namespace {

std::string_view without_dashes(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  return name.substr(0, name.find('='));
}

/// Length of the part in which two names differ, between equal beginnings and equal ends.
std::size_t difference(std::string_view a, std::string_view b) {
  const auto begin = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  a.remove_prefix(static_cast<std::size_t>(begin.first - a.begin()));
  b.remove_prefix(static_cast<std::size_t>(begin.second - b.begin()));
  const auto end = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<std::size_t>(std::max(a.rend() - end.first, b.rend() - end.second));
}

/// "; did you mean --epochs?", or nothing where no name is near.
std::string advice(const CLI::App& app, const std::string& word) {
  const std::string_view name = without_dashes(word);
  std::size_t least = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string text;
  const auto try_name = [&](const char* dashes, const std::string& known) {
    const std::size_t distance = difference(name, known);
    if (distance >= std::min(least, known.size())) return;
    least = distance;
    text = "; did you mean " + (dashes + known) + "?";
  };
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) try_name("--", known);
    for (const std::string& known : option->get_snames()) try_name("-", known);
  }
  return text;
}

}  // namespace

void parse_words(CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    std::string& word = words[i];
    const std::size_t end = std::min(word.find('='), word.size());
    if (word.starts_with("--")) {
      std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    }
    const std::string name = word.substr(0, end);
    const CLI::Option* option = name.starts_with("-") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_expected_min() == 0) continue;
    const bool attached = end != word.size();
    const std::string value = attached             ? word.substr(end + 1)
                              : ++i < words.size() ? words[i]
                                                   : "--";
    if (value.empty() || (!attached && value.starts_with("--"))) {
      throw CLI::ArgumentMismatch(
          name + ": a value is missing" +
          (name.starts_with("--") ? "; write " + name + "=VALUE for one that begins with --" : ""));
    }
  }
  std::reverse(words.begin(), words.end());
  try {
    app.parse(words);
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> extras = app.remaining();
    std::erase(extras, "--");
    const std::string& first = extras.front();
    throw CLI::ExtrasError(first + (first.starts_with("-") ? ": unknown option" + advice(app, first)
                                                           : ": not expected"),
                           CLI::ExitCodes::ExtrasError);
  }
}

}  // namespace vision
