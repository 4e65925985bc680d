/// What horarun prints of its options: all from the option table. Pure.
#pragma once

#include <string>
#include <string_view>

namespace hora::launch {

inline constexpr std::size_t kHelpWidth = 100;

/// --help: at most kHelpWidth columns.
std::string help_text();

/// --man: roff with the man macros, section 1. `version` as in "0.1.0".
std::string man_page(std::string_view version);

/// --completion bash: a script that defines and registers the completion of `horarun`.
std::string bash_completion();

}  // namespace hora::launch
