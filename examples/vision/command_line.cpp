#include "examples/vision/command_line.h"

#include <string>

namespace vision {

void parse_words(CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t end = word.find('=');
    const std::string name = word.substr(0, end);
    const CLI::Option* option = name.starts_with("-") ? app.get_option_no_throw(name) : nullptr;
    if (option == nullptr || option->get_expected_min() == 0) continue;
    const bool attached = end != std::string::npos;
    const std::string value = attached ? word.substr(end + 1) : ++i < argc ? argv[i] : "--";
    if (value.empty() || (!attached && value.starts_with("--"))) {
      throw CLI::ArgumentMismatch(
          name + ": a value is missing" +
          (name.starts_with("--") ? "; write " + name + "=VALUE for one that begins with --" : ""));
    }
  }
  app.parse(argc, argv);
}

}  // namespace vision
