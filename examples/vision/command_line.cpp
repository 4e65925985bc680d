#include "examples/vision/command_line.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace vision {
namespace {

/// "; did you mean --epochs?" where one of the names begins as the other, or nothing.
std::string advice(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (name.size() < 4) return {};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& known : option->get_lnames()) {
      const std::string dashed = "--" + known;
      if (!dashed.starts_with(name) && !name.starts_with(dashed)) continue;
      return "; did you mean " + dashed + "?";
    }
  }
  return {};
}

}  // namespace

void parse_words(CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    std::string& word = words[i];
    const std::size_t end = std::min(word.find('='), word.size());
    const auto name_end = word.begin() + static_cast<std::ptrdiff_t>(end);
    if (word.starts_with("--")) std::replace(word.begin(), name_end, '_', '-');
    const std::string name = word.substr(0, end);
    const CLI::Option* option = name.starts_with("-") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_expected_min() == 0) continue;
    const bool attached = end < word.size();
    if (attached ? end + 1 == word.size()
                 : ++i == words.size() || words[i].empty() || words[i].starts_with("--")) {
      throw CLI::ArgumentMismatch(name + ": a value is missing");
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
