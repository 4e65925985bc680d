/// How rows of the option table put values into LaunchOptions. All are pure; files that a row names
/// are read by the rows themselves.
#pragma once

#include "core/launch/options/option_table.h"

namespace hora::launch {

using Applied = tl::expected<void, std::string>;
using Apply = decltype(OptionRow::apply);

Apply into_integer(std::optional<int> LaunchOptions::*field, int least, int most);
/// Any text that is not empty and has no NUL.
Apply into_text(std::string LaunchOptions::*field);
Apply into_bool(bool LaunchOptions::*field);
/// "on", "off" or "auto".
Apply into_switch(Switch LaunchOptions::*field);
Apply as_action(Action action);

/// A setting of the library, checked by its own parser; `convert` makes its text from the flag's.
using Convert = std::function<tl::expected<std::string, std::string>(std::string_view)>;
Apply into_setting(std::string variable, Convert convert = {});

/// `-x`: NAME, or NAME=VALUE. The error never holds the value.
Applied forward_variable(LaunchOptions& options, std::string_view assignment);

/// Sets the library's setting. Replaces what was set before.
Applied set_setting(LaunchOptions& options, const std::string& variable, std::string_view value);

/// Rows of other launchers' flags.
OptionRow ignored(std::string name, std::vector<std::string> spellings, std::string value,
                  std::string notice);
OptionRow refused(std::string name, std::vector<std::string> spellings, std::string value,
                  std::string advice);
/// Another spelling of something that hora has, with a meaning of its own.
OptionRow translated(std::string name, std::vector<std::string> spellings, std::string value,
                     std::string help, std::string sets, Apply apply);

}  // namespace hora::launch
