/// All settings of hora, in one struct. Each field is one HORA_* environment variable.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hora {

/// How nodes add up their slices. `automatic` is `direct`.
enum class CrossAlgorithm : std::uint8_t { automatic = 0, direct = 1, ring = 2 };
/// Whether MPI is given GPU memory; `automatic`: where every rank's MPI says that it takes it.
enum class CudaAwareMpi : std::uint8_t { automatic = 0, on = 1, off = 2 };
enum class LogLevel : std::uint8_t { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

/// Rank 0's values hold for every rank; a rank that sets another value is an error. Set are those
/// that the environment has, and those of InitOptions::settings that are not the defaults here.
/// The fields' documentation is in setting_descriptions(), from which --help texts and the README
/// table come. Sizes are in bytes.
struct Settings {
  int ranks_per_node = 0;
  std::size_t fusion_threshold = std::size_t{64} << 20;
  std::size_t bucket_size = 0;
  std::size_t chunk_size = std::size_t{1} << 20;
  std::size_t small_message = std::size_t{4} << 10;
  CrossAlgorithm cross_algorithm = CrossAlgorithm::automatic;
  int id_capacity = 4096;
  std::chrono::microseconds spin{50};
  std::chrono::milliseconds stall_warning{10000};
  std::chrono::milliseconds timeout{600000};
  std::chrono::milliseconds init_timeout{300000};
  bool malloc_tuning = true;
  bool cuda = true;
  CudaAwareMpi cuda_aware_mpi = CudaAwareMpi::automatic;
  std::chrono::milliseconds device_timeout{60000};
  std::string timeline = {};  ///< empty: off
  LogLevel log_level = LogLevel::warning;
  std::string allow_unknown = {};  ///< names with commas between them; empty: none

  bool operator==(const Settings&) const = default;
};

/// One row of the settings table.
struct SettingDescription {
  std::string_view variable;       ///< "HORA_FUSION_THRESHOLD"
  std::string_view allowed;        ///< "bytes, with an optional suffix K, M, G, KiB, MiB or GiB"
  std::string_view documentation;  ///< one sentence
  std::string default_value;       ///< as one would write it: "64MiB"
};
std::span<const SettingDescription> setting_descriptions();

/// One "NAME=VALUE" that was set explicitly.
struct SettingAssignment {
  std::string variable;
  std::string value;
  bool operator==(const SettingAssignment&) const = default;
};

/// The HORA_* assignments in `environment` (entries "NAME=VALUE", such as `environ`'s).
std::vector<SettingAssignment> setting_assignments(std::span<const char* const> environment);

/// Settings with these assignments applied to the defaults. Throws Error(invalid_setting) naming
/// the variable, its value and what is allowed, for an unknown HORA_* name (with the nearest known
/// one), a bad suffix, a negative or overflowing number, or an unknown choice. Passed over are
/// names that module systems give every package (HORA_ROOT, HORA_HOME, HORA_LIB and the like), and
/// those that HORA_ALLOW_UNKNOWN lists.
Settings parse_settings(std::span<const SettingAssignment> assignments);

/// The value of each variable in `settings`, written so that parse_settings reads it back.
std::vector<SettingAssignment> to_assignments(const Settings& settings);

/// Those of them whose value is not the default: what InitOptions::settings counts as set.
std::vector<SettingAssignment> changed_assignments(const Settings& settings);

}  // namespace hora
