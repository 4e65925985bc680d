#include "core/launch/options/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

namespace hora::launch {
namespace {

/// The arguments as CLI11 takes them: each flag by its row's name after two dashes.
struct Normalised {
  std::vector<std::string> arguments;
  std::vector<std::string> spelled;  ///< for each flag, how the user wrote it
  std::vector<std::string> program;
};

/// A flag of the user's.
struct Flag {
  const OptionRow* row = nullptr;  ///< null: unknown
  std::string spelled;             ///< without the value
  std::optional<std::string> value;
};

/// "-np", "--np=4", "-H=a", "-p22", "--no-report", "--nproc_per_node".
Flag read_flag(const std::string& argument) {
  const std::size_t dashes = argument.starts_with("--") ? 2 : 1;
  const std::size_t equals = argument.find('=');
  const std::string name = argument.substr(dashes, equals - dashes);
  Flag flag{find_option(name), argument.substr(0, equals), std::nullopt};
  if (equals != argument.npos) flag.value = argument.substr(equals + 1);
  if (flag.row != nullptr) return flag;
  if (name.starts_with("no-") || name.starts_with("no_")) {
    const OptionRow* const positive = find_option(name.substr(3));
    if (positive != nullptr && positive->kind == OptionKind::toggle && !flag.value) {
      return {positive, flag.spelled, "off"};
    }
  }
  if (dashes == 1) {
    const OptionRow* const attached = find_option(name.substr(0, 1));
    if (attached != nullptr && attached->kind == OptionKind::value) {
      return {attached, argument.substr(0, 2), argument.substr(2)};
    }
  }
  return flag;
}

/// How many arguments follow the flag, where none stands after a `=`.
std::size_t values_after(OptionKind kind) {
  switch (kind) {
    case OptionKind::flag:
      return 0;
    case OptionKind::toggle:
    case OptionKind::value:
      return 1;
    case OptionKind::pair:
      return 2;
  }
  return 0;
}

bool is_switch_value(const std::string& argument) {
  return argument == "on" || argument == "off" || argument == "auto";
}

UsageError unknown(const std::string& spelled) {
  const std::string nearest = nearest_option(spelled.substr(spelled.find_first_not_of('-')));
  std::string advice = nearest.empty() ? "" : "did you mean " + with_dashes(nearest) + "? ";
  advice += "Flags for mpirun alone go into --mpi-args, those of the program behind its name";
  return {spelled, "", "horarun has no flag of this name", advice};
}

tl::expected<Normalised, UsageError> normalise(std::span<const std::string> arguments) {
  Normalised result;
  const auto give_program = [&](std::size_t begin) {
    const auto program = arguments.subspan(begin);
    result.program.assign(program.begin(), program.end());
    return result;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") return give_program(i + 1);
    if (argument.size() < 2 || argument.front() != '-') return give_program(i);
    Flag flag = read_flag(argument);
    if (flag.row == nullptr) return tl::unexpected(unknown(flag.spelled));
    if (flag.row->standing == Standing::refused) {
      return tl::unexpected(refusal(*flag.row, flag.spelled));
    }
    if (flag.row->kind == OptionKind::flag && flag.value) {
      return tl::unexpected(UsageError{flag.spelled, *flag.value, "this flag takes no value"});
    }
    const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (flag.row->kind == OptionKind::toggle && !flag.value && !is_switch_value(next)) {
      flag.value = "on";
    }
    if (flag.row->kind == OptionKind::pair) {
      const std::string name = flag.value.value_or(next);
      if (name.find(' ') != name.npos) {
        return tl::unexpected(
            UsageError{flag.spelled, "", "expected a name without spaces, and a value"});
      }
    }
    result.arguments.push_back("--" + flag.row->name);
    result.spelled.push_back(flag.spelled);
    std::size_t values = values_after(flag.row->kind);
    if (flag.value) {
      result.arguments.push_back(*flag.value);
      --values;
    }
    for (; values > 0 && i + 1 < arguments.size(); --values) {
      result.arguments.push_back(arguments[++i]);
    }
  }
  return result;
}

/// A parser with an option for each row.
class Parser {
 public:
  Parser() {
    app_.set_help_flag();
    const auto collect = [](const CLI::results_t&) { return true; };
    for (const OptionRow& row : option_table()) {
      CLI::Option* const option = app_.add_option("--" + row.name, collect);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      if (row.kind == OptionKind::flag) {
        option->expected(0);
      } else {
        option->type_size(static_cast<int>(values_after(row.kind)));
      }
      rows_[option] = &row;
    }
  }

  /// Throws CLI::ParseError.
  std::vector<Occurrence> parse(std::vector<std::string> arguments) {
    std::ranges::reverse(arguments);  // as App::parse takes them
    app_.parse(std::move(arguments));
    std::vector<Occurrence> occurrences;
    std::map<const CLI::Option*, std::size_t> taken;
    bool is_second = false;  // of a pair
    for (const CLI::Option* const option : app_.parse_order()) {
      const OptionRow& row = *rows_.at(option);
      const std::string value =
          row.kind == OptionKind::flag ? "" : option->results()[taken[option]++];
      if (is_second) {
        occurrences.back().value += " " + value;
      } else {
        occurrences.push_back({&row, value, ""});
      }
      is_second = row.kind == OptionKind::pair && !is_second;
    }
    return occurrences;
  }

 private:
  CLI::App app_;
  std::map<const CLI::Option*, const OptionRow*> rows_;
};

}  // namespace

UsageError refusal(const OptionRow& row, std::string place) {
  return {std::move(place), "", "not supported", row.help};
}

tl::expected<Arguments, UsageError> parse_arguments(std::span<const std::string> arguments) {
  const auto normalised = normalise(arguments);
  if (!normalised) return tl::unexpected(normalised.error());
  Arguments result{{}, normalised->program};
  try {
    result.options = Parser().parse(normalised->arguments);
  } catch (const CLI::ArgumentMismatch&) {
    const std::string& flag = normalised->spelled.back();
    return tl::unexpected(UsageError{flag, "", "the value is missing", "see --help"});
  } catch (const CLI::ParseError& error) {
    return tl::unexpected(UsageError{"", "", error.what()});
  }
  for (std::size_t i = 0; i < result.options.size(); ++i) {
    result.options[i].place = normalised->spelled.at(i);
  }
  return result;
}

}  // namespace hora::launch
