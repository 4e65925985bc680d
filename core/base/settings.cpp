#include "core/base/settings.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>

#include "core/base/text.h"

namespace hora {
using namespace internal;
namespace {

// The table of settings: one row is all that hora knows about one HORA_* variable.

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};

// The first suffix that fits is written.
constexpr Suffix kNoSuffix[] = {{"", 1}};
constexpr Suffix kSizeSuffixes[] = {
    {"GiB", 1 << 30}, {"MiB", 1 << 20},   {"KiB", 1 << 10}, {"G", 1 << 30}, {"M", 1 << 20},
    {"K", 1 << 10},   {"GB", 1000000000}, {"MB", 1000000},  {"KB", 1000},   {"", 1}};
constexpr Suffix kMicrosecondSuffixes[] = {{"s", 1000000}, {"ms", 1000}, {"us", 1}, {"", 1}};
constexpr Suffix kSecondSuffixes[] = {{"s", 1000}, {"ms", 1}, {"", 1000}};

struct Unit {
  std::string_view name;
  std::span<const Suffix> suffixes;
  std::string_view note;
};

constexpr Unit kCount{"a whole number", kNoSuffix, ""};
constexpr Unit kBytes{"bytes", kSizeSuffixes,
                      ", optionally with a suffix: K, M, G, KiB, MiB, GiB (powers of 1024), KB, MB "
                      "or GB (powers of 1000)"};
constexpr Unit kMicroseconds{"microseconds", kMicrosecondSuffixes,
                             ", optionally with a suffix: us, ms or s"};
constexpr Unit kSeconds{"seconds", kSecondSuffixes, ", optionally with a suffix: ms or s"};

// The choices' names, by the numbers of their enumerators.
using Names = std::span<const std::string_view>;
constexpr std::string_view kSwitch[] = {"off", "on"};
constexpr std::string_view kAutoOnOff[] = {"auto", "on", "off"};
constexpr std::string_view kCrossAlgorithms[] = {"automatic", "direct", "ring"};
constexpr std::string_view kGpuNetworks[] = {"auto", "mpi", "nccl"};
constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error", "off"};

/// Why a text cannot be a value; empty where it can.
using Wrong = std::string (*)(std::string_view);

struct Row {
  std::string_view variable = {};
  std::string_view documentation = {};
  /// A field as a number: its value, count of its duration unit, or index of its choice.
  std::int64_t (*get)(const Settings&) = nullptr;
  void (*set)(Settings&, std::int64_t) = nullptr;
  Names choices = {};  ///< empty: a number, or a text
  const Unit* unit = nullptr;
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool or_zero = false;  ///< below `least`
  // For a text, which stands for "off" where it is empty:
  std::string Settings::*text = nullptr;
  std::string_view allowed = {};  ///< beside "off"
  Wrong wrong = nullptr;
};

/// The comments of settings.h.
struct Documentation {
  std::string_view variable;
  std::string_view text;
};
constexpr Documentation kDocumentation[] = {
#include "setting_documentation.inc"
};

/// The row with its documentation and its field.
template <auto Field>
constexpr Row row(Row made) {
  made.documentation =
      std::ranges::find(kDocumentation, made.variable, &Documentation::variable)->text;
  using Type = std::remove_cvref_t<decltype(std::declval<Settings>().*Field)>;
  if constexpr (std::is_same_v<Type, std::string>) {
    made.text = Field;
  } else {
    made.get = [](const Settings& settings) {
      if constexpr (requires { (settings.*Field).count(); }) {
        return std::int64_t{(settings.*Field).count()};
      } else {
        return static_cast<std::int64_t>(settings.*Field);
      }
    };
    made.set = [](Settings& settings, std::int64_t value) {
      settings.*Field = static_cast<Type>(value);
    };
  }
  return made;
}

template <auto Field>
constexpr Row number(std::string_view variable, const Unit& unit, std::int64_t least,
                     std::int64_t most, bool or_zero = false) {
  return row<Field>(
      {.variable = variable, .unit = &unit, .least = least, .most = most, .or_zero = or_zero});
}

template <auto Field>
constexpr Row choice(std::string_view variable, Names names = kSwitch) {
  return row<Field>({.variable = variable, .choices = names});
}

template <auto Field>
constexpr Row text(std::string_view variable, std::string_view allowed, Wrong wrong) {
  return row<Field>({.variable = variable, .allowed = allowed, .wrong = wrong});
}

constexpr std::string_view kPrefix = "HORA_";

/// The names between commas.
std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> result;
  std::stringstream rest(std::string(names) + ",");
  for (std::string name; std::getline(rest, name, ',');) result.push_back(name);
  return result;
}

bool has_control(std::string_view path) {
  return std::ranges::any_of(
      path, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

std::string wrong_with_foreign_names(std::string_view names) {
  const auto is_of_name = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (const std::string& name : split(names)) {
    if (name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
        std::ranges::all_of(name, is_of_name)) {
      continue;
    }
    return in_quotes(name) +
           " is no name of letters, digits and underscores that begins with HORA_";
  }
  return {};
}

std::string wrong_with_record_directory(std::string_view path) {
  if (has_control(path)) return "the path has control characters";
  if (path.find('%') != path.npos) return "% means nothing here: each rank has a file of its own";
  return {};
}

std::string wrong_with_tuning(std::string_view text) {
  if (text == "on") return {};
  if (text.find('%') != text.npos) return "% means nothing here: rank 0 alone has the file";
  return wrong_with_timeline_path(text);
}

constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30, kThousandDays = 86400000;
constexpr bool kOrZero = true;

constexpr Row kRows[] = {
    number<&Settings::ranks_per_node>("HORA_RANKS_PER_NODE", kCount, 0, 65536),
    number<&Settings::ranks_per_memory_node>("HORA_RANKS_PER_MEMORY_NODE", kCount, 0, 65536),
    number<&Settings::fusion_threshold>("HORA_FUSION_THRESHOLD", kBytes, 0, 64 * kGiB),
    number<&Settings::bucket_size>("HORA_BUCKET_SIZE", kBytes, 0, 64 * kGiB),
    text<&Settings::tuning>("HORA_TUNING", "on, or the path of a file", wrong_with_tuning),
    number<&Settings::chunk_size>("HORA_CHUNK_SIZE", kBytes, 4 * kKiB, kGiB, kOrZero),
    number<&Settings::message_size>("HORA_MESSAGE_SIZE", kBytes, 4 * kKiB, kGiB, kOrZero),
    number<&Settings::small_message>("HORA_SMALL_MESSAGE", kBytes, 0, 64 * kMiB),
    choice<&Settings::cross_algorithm>("HORA_CROSS_ALGORITHM", kCrossAlgorithms),
    number<&Settings::id_capacity>("HORA_ID_CAPACITY", kCount, 16, 65536),
    number<&Settings::spin>("HORA_SPIN", kMicroseconds, 0, 1000000),
    number<&Settings::stall_warning>("HORA_STALL_WARNING", kSeconds, 0, kThousandDays),
    number<&Settings::timeout>("HORA_TIMEOUT", kSeconds, 0, kThousandDays),
    number<&Settings::init_timeout>("HORA_INIT_TIMEOUT", kSeconds, 0, kThousandDays),
    choice<&Settings::malloc_tuning>("HORA_MALLOC_TUNING"),
    choice<&Settings::tensor_arena>("HORA_TENSOR_ARENA", kAutoOnOff),
    number<&Settings::tensor_arena_limit>("HORA_TENSOR_ARENA_LIMIT", kBytes, 0, 1024 * kGiB),
    choice<&Settings::cuda>("HORA_CUDA"),
    choice<&Settings::gpu_network>("HORA_GPU_NETWORK", kGpuNetworks),
    number<&Settings::nccl_ctas>("HORA_NCCL_CTAS", kCount, 0, 64),
    choice<&Settings::nccl_windows>("HORA_NCCL_WINDOWS"),
    choice<&Settings::cuda_aware_mpi>("HORA_CUDA_AWARE_MPI", kAutoOnOff),
    number<&Settings::device_timeout>("HORA_DEVICE_TIMEOUT", kSeconds, 0, kThousandDays),
    choice<&Settings::report>("HORA_REPORT"),
    text<&Settings::timeline>("HORA_TIMELINE", "the path of a file", wrong_with_timeline_path),
    text<&Settings::record_directory>("HORA_RECORD_DIRECTORY", "the path of a folder",
                                      wrong_with_record_directory),
    choice<&Settings::log_level>("HORA_LOG_LEVEL", kLogLevels),
    text<&Settings::allow_unknown>("HORA_ALLOW_UNKNOWN",
                                   "names that begin with HORA_, with commas between them",
                                   wrong_with_foreign_names),
};
static_assert(std::size(kRows) == std::size(kDocumentation),
              "each field of Settings has one row in kRows");

std::string format_number(std::int64_t value, std::span<const Suffix> suffixes) {
  if (value == 0) return "0";
  const auto suffix = std::ranges::find_if(
      suffixes, [value](const Suffix& each) { return value % each.factor == 0; });
  if (suffix == suffixes.end()) return std::to_string(value);
  return fmt::format("{}{}", value / suffix->factor, suffix->name);
}

std::string format(const Row& row, const Settings& settings) {
  if (row.text) return (settings.*row.text).empty() ? "off" : settings.*row.text;
  const std::int64_t value = row.get(settings);
  if (row.choices.empty()) return format_number(value, row.unit->suffixes);
  if (value < 0 || static_cast<std::size_t>(value) >= row.choices.size()) {
    throw Error(ErrorCode::invalid_setting,
                fmt::format("{}: there is no choice {}", row.variable, value));
  }
  return std::string(row.choices[static_cast<std::size_t>(value)]);
}

std::string allowed(const Row& row) {
  if (row.text) return fmt::format("off, or {}", row.allowed);
  if (row.choices.empty()) {
    const auto bound = [&](std::int64_t value) { return format_number(value, row.unit->suffixes); };
    return fmt::format("{}{} from {} to {}{}", row.unit->name, row.or_zero ? ", 0 or" : "",
                       bound(row.least), bound(row.most), row.unit->note);
  }
  const auto others = row.choices.first(row.choices.size() - 1);
  return fmt::format("{} or {}", fmt::join(others, ", "), row.choices.back());
}

[[noreturn]] void refuse(const Row& row, std::string_view value, std::string_view reason) {
  throw Error(ErrorCode::invalid_setting, fmt::format("{}={}: {}; allowed: {}", row.variable,
                                                      in_quotes(value), reason, allowed(row)));
}

std::int64_t parse_number(const Row& row, std::string_view text) {
  if (text.starts_with('-')) refuse(row, text, "the value is negative");
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) refuse(row, text, "the value is not a number");
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.starts_with('.')) refuse(row, text, "the value is not a whole number");
  const auto suffix = std::ranges::find(row.unit->suffixes, rest, &Suffix::name);
  if (suffix == row.unit->suffixes.end()) {
    refuse(row, text, "unknown suffix " + in_quotes(rest));
  }
  if (error == std::errc::result_out_of_range || number > row.most / suffix->factor) {
    refuse(row, text, "the value is too large");
  }
  number *= suffix->factor;
  const bool is_zero = row.or_zero && number == 0;
  if (number < row.least && !is_zero) refuse(row, text, "the value is too small");
  return number;
}

void set(const Row& row, std::string_view text, Settings& settings) {
  if (text.empty()) refuse(row, text, "the value is empty (unset the variable for the default)");
  if (row.text) {
    const std::string reason = text == "off" ? std::string() : row.wrong(text);
    if (!reason.empty()) refuse(row, text, reason);
    settings.*row.text = text == "off" ? std::string() : std::string(text);
  } else if (row.choices.empty()) {
    row.set(settings, parse_number(row, text));
  } else {
    const auto choice = std::ranges::find(row.choices, text);
    if (choice == row.choices.end()) refuse(row, text, "unknown choice");
    row.set(settings, choice - row.choices.begin());
  }
}

/// Levenshtein's distance: the fewest insertions, deletions and replacements from `a` to `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

[[noreturn]] void refuse_unknown(const SettingAssignment& assignment) {
  const auto distance = [&](const Row& row) {
    return edit_distance(assignment.variable, row.variable);
  };
  std::string known;
  for (const Row& row : kRows) known.append(" ").append(row.variable);
  throw Error(ErrorCode::invalid_setting,
              fmt::format("{0}={1}: hora has no setting of this name; did you mean {2}? If it is "
                          "not meant for hora, HORA_ALLOW_UNKNOWN={0} lets it pass. Allowed:{3}",
                          assignment.variable, in_quotes(assignment.value),
                          std::ranges::min_element(kRows, {}, distance)->variable, known));
}

// Variables that are not meant for hora.

/// Without the prefix, each between spaces. Environment Modules, Lmod, EasyBuild and Spack are
/// used to set them, by hand or by template, to where a package lies.
constexpr std::string_view kOfPackages =
    " ARCH BASE BASEDIR BIN BINDIR BIN_DIR BIN_PATH CMAKE_DIR CONFIG DATA DATADIR DIR DOC"
    " DOCDIR DOC_DIR HOME INC INCDIR INCLUDE INCLUDEDIR INCLUDES INCLUDE_DIR INCLUDE_DIRS"
    " INCLUDE_PATH INC_DIR INSTALL INSTALLDIR INSTALL_DIR INSTALL_PATH INSTALL_PREFIX LIB"
    " LIBDIR LIBRARIES LIBRARY LIBRARY_DIR LIBRARY_DIRS LIBRARY_PATH LIBS LIB_DIR LIB_PATH"
    " LICENSE LICENSE_FILE LOADED MAN MANDIR MANPATH MODULE MODULEFILE MODULEPATH MODULE_FILE"
    " MODULE_NAME MODULE_PATH MODULE_VERSION NAME PATH PKGCONFIG PKG_CONFIG_PATH PREFIX"
    " RELEASE ROOT ROOTDIR ROOT_DIR SHARE SOURCE SOURCE_DIR SRC SRCDIR SRC_DIR TOP TOPDIR VER"
    " VERSION ";

bool names_package_part(std::string_view variable) {
  // Environment Modules counts by variables of such names how often a path was added.
  constexpr std::string_view kCounterSuffix = "_modshare";
  if (!variable.starts_with(kPrefix)) return false;
  variable.remove_prefix(kPrefix.size());
  if (variable.ends_with(kCounterSuffix)) variable.remove_suffix(kCounterSuffix.size());
  return variable.find(' ') == variable.npos &&
         kOfPackages.find(fmt::format(" {} ", variable)) != kOfPackages.npos;
}

}  // namespace

bool internal::is_foreign(std::string_view variable, std::string_view allowed) {
  if (std::ranges::find(kRows, variable, &Row::variable) != std::end(kRows)) return false;
  return names_package_part(variable) || std::ranges::count(split(allowed), variable) > 0;
}

std::string internal::allowed_unknown(std::span<const SettingAssignment> assignments) {
  const auto set =
      std::ranges::find(assignments, "HORA_ALLOW_UNKNOWN", &SettingAssignment::variable);
  return set == assignments.end() ? std::string() : set->value;
}

std::vector<SettingAssignment> internal::without_foreign(
    std::span<const SettingAssignment> assignments, std::string_view allowed_by_rank_0) {
  const std::string allowed = allowed_unknown(assignments);
  std::vector<SettingAssignment> ours(assignments.begin(), assignments.end());
  std::erase_if(ours, [&](const SettingAssignment& each) {
    return is_foreign(each.variable, allowed) || is_foreign(each.variable, allowed_by_rank_0);
  });
  return ours;
}

std::string internal::wrong_with_timeline_path(std::string_view path) {
  if (path.empty()) return "the path is empty";
  // Settings travel between ranks as lines; a file's name with control characters is a mistake.
  if (has_control(path)) return "the path has control characters";
  const std::filesystem::path name = std::filesystem::path(path).filename();
  std::error_code ignored;
  if (name.empty() || name == "." || name == ".." ||
      std::filesystem::is_directory(std::filesystem::path(path), ignored)) {
    return "the path names a folder, not a file";
  }
  for (std::size_t at = path.find('%'); at != path.npos; at = path.find('%', at + 1)) {
    if (path.substr(at, 2) != "%r") return "after % only r, for the rank, may follow";
  }
  return {};
}

std::span<const SettingDescription> setting_descriptions() {
  static const auto descriptions = [] {
    std::vector<SettingDescription> all;
    for (const Row& row : kRows) {
      all.push_back(
          {row.variable, allowed(row), row.documentation, format(row, Settings{}), row.choices});
    }
    return all;
  }();
  return descriptions;
}

std::vector<SettingAssignment> setting_assignments(std::span<const char* const> environment) {
  std::vector<SettingAssignment> assignments;
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    if (!text.starts_with(kPrefix)) continue;
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::size_t value = std::min(equals + 1, text.size());
    assignments.push_back({std::string(text.substr(0, equals)), std::string(text.substr(value))});
  }
  return assignments;
}

Settings parse_settings(std::span<const SettingAssignment> assignments) {
  Settings settings;
  std::set<std::string_view> seen;
  for (const SettingAssignment& assignment : assignments) {
    const auto row = std::ranges::find(kRows, assignment.variable, &Row::variable);
    if (row == std::end(kRows)) {
      if (is_foreign(assignment.variable, allowed_unknown(assignments))) continue;
      refuse_unknown(assignment);
    }
    if (!seen.insert(assignment.variable).second) {
      refuse(*row, assignment.value, "the variable is set more than once");
    }
    set(*row, assignment.value, settings);
  }
  return settings;
}

std::vector<SettingAssignment> to_assignments(const Settings& settings) {
  std::vector<SettingAssignment> assignments;
  for (const Row& row : kRows) {
    assignments.push_back({std::string(row.variable), format(row, settings)});
  }
  return assignments;
}

std::vector<SettingAssignment> changed_assignments(const Settings& settings) {
  const std::vector<SettingAssignment> defaults = to_assignments({});
  std::vector<SettingAssignment> changed = to_assignments(settings);
  std::erase_if(changed, [&](const auto& each) { return std::ranges::count(defaults, each) > 0; });
  return changed;
}

}  // namespace hora
