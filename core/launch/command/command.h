/// A program to start, as values: what a dry run prints and what the agent executes.
#pragma once

#include <string>
#include <vector>

namespace hora::launch {

struct Variable {
  std::string name;
  std::string value;

  bool operator==(const Variable&) const = default;
};

struct Command {
  /// arguments[0] is the program's path. Executed as it is: nothing goes through a shell.
  std::vector<std::string> arguments;
  /// Set on top of the environment that the process inherits.
  std::vector<Variable> environment;

  bool operator==(const Command&) const = default;
};

}  // namespace hora::launch
