/// A command as text for people. Pure.
#pragma once

#include <string>
#include <string_view>

#include "core/launch/command/command.h"

namespace hora::launch {

/// One word as a POSIX shell reads it back: as it is where that is safe, else in single quotes.
/// No value holds a zero byte.
std::string as_shell_word(std::string_view word);

/// `NAME=value... program argument...` in one line, which a POSIX shell reads back as the same
/// command. A line feed within a word stays one, within quotes.
std::string as_shell_line(const Command& command);

}  // namespace hora::launch
