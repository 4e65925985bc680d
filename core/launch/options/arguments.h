/// horarun's arguments as occurrences of options, and the program's. Pure.
#pragma once

#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/options/launch_options.h"
#include "core/launch/options/option_table.h"

namespace hora::launch {

/// One option with its value, wherever it stands.
struct Occurrence {
  const OptionRow* row = nullptr;
  std::string value;  ///< as OptionRow::apply takes it
  std::string place;  ///< for messages: "-np" or "job.yaml:3: np"
};

struct Arguments {
  std::vector<Occurrence> options;   ///< in order
  std::vector<std::string> program;  ///< with all that follows it
};

/// `arguments` without the program's own name. The first argument that is neither a flag nor a
/// flag's value is the job's program, also after `--`; from there on nothing is looked at. Long
/// names are taken after one dash, too (-np, -hostfile), with `_` for `-`, and values after `=` or
/// as the next argument, whatever it looks like. Errors: an unknown flag, a refused one, a missing
/// value.
tl::expected<Arguments, UsageError> parse_arguments(std::span<const std::string> arguments);

/// What the message says of a flag that is refused.
UsageError refusal(const OptionRow& row, std::string place);

}  // namespace hora::launch
