/// The table of horarun's options: one row is all that is known about one flag. From it come the
/// parser (arguments.h), the keys of config files (config_file.h), --help, the completion, and the
/// man page. Built once, then constant: any thread.
///
/// Where horovodrun, mpirun or torchrun has a flag of the same meaning, the row has its spelling,
/// so that their users' lines run. Their flags that mean nothing here have rows, too: `ignored`
/// with a notice where the job is the same without them, `refused` with what to use where it is
/// not.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/options/launch_options.h"

namespace hora::launch {

/// What follows a flag: nothing; optionally one of on, off and auto, after `=` or as the next
/// argument (--NAME alone is on, --no-NAME off); a value; a name and a value as two arguments.
enum class OptionKind { flag, toggle, value, pair };

enum class OptionGroup {
  job,
  hosts,
  nodes,
  binding,
  output,
  watch,
  about,
  settings,
  compatibility
};

enum class Standing { supported, ignored, refused };

/// What a shell completes after the flag, beside `choices`.
enum class Completes { nothing, files, folders };

/// Several values in one: not allowed; between commas; by repeating the flag.
enum class Listing { none, commas, repeated };

struct OptionRow {
  std::string name;  ///< without dashes; --name is a spelling, and `name` the key in config files
  std::vector<std::string> spellings = {};  ///< others, without dashes; one letter: a short option
  std::string value = {};                   ///< what the value is called: "N", "HOST:SLOTS,..."
  std::string help = {};  ///< for supported ones; others: the notice or the advice
  OptionKind kind = OptionKind::flag;
  OptionGroup group = OptionGroup::compatibility;
  Standing standing = Standing::supported;
  /// Puts the value into the options: "" of a flag, "on" or "off" of a toggle, "name value" of a
  /// pair. The error says what was expected. Empty: nothing is to be done.
  std::function<tl::expected<void, std::string>(LaunchOptions&, std::string_view)> apply = {};
  std::string default_value = {};
  std::vector<std::string> choices = {};
  Completes completes = Completes::nothing;
  Listing listing = Listing::none;
  /// Rows that set the same thing have the same text here; what a config file says of it gives way
  /// to the command line. Empty: `name`.
  std::string sets = {};
  bool merges = false;  ///< the config file's values stay beside the command line's
  bool on_command_line_only = false;
  bool is_secret = false;  ///< after a `=` in the value follows what must not be printed
};

std::span<const OptionRow> option_table();

/// What the row sets: equal for rows of which one replaces the other.
std::string_view target_of(const OptionRow& row);

/// The row of a spelling without dashes (`_` counts as `-`), or null.
const OptionRow* find_option(std::string_view spelling);

/// The supported spelling that is nearest to an unknown one, without dashes; empty where none is
/// near.
std::string nearest_option(std::string_view spelling);

/// "-H", "-np" or "--hosts": one dash before one or two letters.
std::string with_dashes(std::string_view spelling);

/// All spellings of the row, the main one first: "-np, -n, --num-proc".
std::string shown_spellings(const OptionRow& row);

/// What follows them: "N", "auto|none|core|numa", "[=on|off|auto]", or nothing.
std::string shown_value(const OptionRow& row);

struct GroupTitle {
  OptionGroup group;
  std::string_view title;
};
/// The groups of which --help and the man page have a section, in order: all but `compatibility`.
std::span<const GroupTitle> group_titles();

// The parts of the table, each in a file of its own.
std::vector<OptionRow> job_rows();
std::vector<OptionRow> output_rows();
std::vector<OptionRow> setting_rows();
std::vector<OptionRow> horovod_rows();
std::vector<OptionRow> mpi_rows();
std::vector<OptionRow> torch_rows();

// How rows put values into LaunchOptions. All are pure; files that a row names are read by the rows
// themselves.

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
