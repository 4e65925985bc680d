/// What a row of the table of settings consists of: units, names of choices, access to a field.
#pragma once

#include <hora/settings.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace hora::internal::setting_table {

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};

// Of several suffixes that fit, the first one is written.
inline constexpr Suffix kNoSuffix[] = {{"", 1}};
inline constexpr Suffix kSizeSuffixes[] = {
    {"GiB", 1 << 30}, {"MiB", 1 << 20},   {"KiB", 1 << 10}, {"G", 1 << 30}, {"M", 1 << 20},
    {"K", 1 << 10},   {"GB", 1000000000}, {"MB", 1000000},  {"KB", 1000},   {"", 1}};
inline constexpr Suffix kMicrosecondSuffixes[] = {{"s", 1000000}, {"ms", 1000}, {"us", 1}, {"", 1}};
inline constexpr Suffix kSecondSuffixes[] = {{"s", 1000}, {"ms", 1}, {"", 1000}};

struct Unit {
  std::string_view name;
  std::span<const Suffix> suffixes;
  std::string_view note;
};

inline constexpr Unit kCount{"a whole number", kNoSuffix, ""};
inline constexpr Unit kBytes{
    "bytes", kSizeSuffixes,
    ", optionally with a suffix: K, M, G, KiB, MiB, GiB (powers of 1024), KB, MB "
    "or GB (powers of 1000)"};
inline constexpr Unit kMicroseconds{"microseconds", kMicrosecondSuffixes,
                                    ", optionally with a suffix: us, ms or s"};
inline constexpr Unit kSeconds{"seconds", kSecondSuffixes, ", optionally with a suffix: ms or s"};

/// What each choice is called. No default: the compiler warns of an enumerator without a name.
constexpr std::string_view choice_name(CrossAlgorithm algorithm) {
  switch (algorithm) {
    case CrossAlgorithm::automatic:
      return "automatic";
    case CrossAlgorithm::direct:
      return "direct";
    case CrossAlgorithm::ring:
      return "ring";
  }
  return {};
}
constexpr std::string_view choice_name(CudaAwareMpi use) {
  switch (use) {
    case CudaAwareMpi::automatic:
      return "auto";
    case CudaAwareMpi::on:
      return "on";
    case CudaAwareMpi::off:
      return "off";
  }
  return {};
}
constexpr std::string_view choice_name(GpuNetwork network) {
  switch (network) {
    case GpuNetwork::automatic:
      return "auto";
    case GpuNetwork::mpi:
      return "mpi";
    case GpuNetwork::nccl:
      return "nccl";
  }
  return {};
}
constexpr std::string_view choice_name(TensorArenaUse use) {
  switch (use) {
    case TensorArenaUse::automatic:
      return "auto";
    case TensorArenaUse::on:
      return "on";
    case TensorArenaUse::off:
      return "off";
  }
  return {};
}
constexpr std::string_view choice_name(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    case LogLevel::off:
      return "off";
  }
  return {};
}

/// The names of all enumerators, by their numbers, which count from 0 without a gap.
template <class E>
inline constexpr auto kChoices = [] {
  constexpr std::size_t count = [] {
    std::size_t named = 0;
    while (!choice_name(static_cast<E>(named)).empty()) ++named;
    return named;
  }();
  std::array<std::string_view, count> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = choice_name(static_cast<E>(i));
  return names;
}();
inline constexpr std::string_view kSwitch[] = {"off", "on"};

/// A field of Settings as a number: its value, count of its duration unit, or index of its choice.
template <auto Member>
std::int64_t get(const Settings& settings) {
  if constexpr (requires { (settings.*Member).count(); }) {
    return static_cast<std::int64_t>((settings.*Member).count());
  } else {
    return static_cast<std::int64_t>(settings.*Member);
  }
}

template <auto Member>
void set(Settings& settings, std::int64_t value) {
  using Field = std::remove_cvref_t<decltype(settings.*Member)>;
  settings.*Member = static_cast<Field>(value);
}

struct Accessors {
  std::int64_t (*get)(const Settings&);
  void (*set)(Settings&, std::int64_t);
};
template <auto Member>
inline constexpr Accessors kField{get<Member>, set<Member>};

/// A setting that is a text; empty stands for "off".
struct Text {
  std::string Settings::*field = nullptr;
  std::string_view allowed = {};  ///< beside "off"
  /// What is wrong with a text; empty where nothing is.
  std::string (*wrong)(std::string_view) = nullptr;
};

struct Row {
  std::string_view variable;
  std::string_view documentation;
  Accessors field;
  std::span<const std::string_view> choices;  ///< empty: a number, described by what follows
  const Unit* unit = nullptr;
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool or_zero = false;  ///< below `least`
  Text text = {};        ///< its field is set where the setting is no number
};

}  // namespace hora::internal::setting_table
