/// horarun's flags as CLI11's options, each bound to a field of LaunchOptions: names, help, groups,
/// and what a value does. Where horovodrun, mpirun or torchrun has a flag of the same meaning, it
/// has that spelling, so that their users' lines run; their other flags are in compat.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/options/options.h"

namespace hora::launch {

/// The message for the user; thrown.
struct UsageError {
  std::string message;
};
/// Throws: place "value": problem; advice. What is empty is left out.
[[noreturn]] void refuse(std::string_view place, std::string_view value, std::string_view problem,
                         std::string_view advice = {});

/// The values after a flag: nothing; optionally one of on, off and auto, after `=` or as the next
/// argument (--NAME alone is on, --no-NAME off); a value; a name and a value as two arguments.
enum class Takes { nothing, on_off, value, pair };

class Flags {
 public:
  static constexpr std::string_view kRefused = "refused";

  explicit Flags(LaunchOptions& options);
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// The flag of a spelling without dashes (`_` counts as `-`), or null.
  CLI::Option* find(std::string_view spelling);
  /// "did you mean --np?", or without dashes; empty where no spelling is near.
  std::string suggestion(std::string_view spelling, bool dashed) const;

  static Takes taken_by(const CLI::Option& flag);
  /// The thing that the flag sets: equal for flags of which one replaces the other. kRefused for
  /// those that apply() refuses, whatever follows them.
  const std::string& target_of(const CLI::Option& flag) const { return targets_.at(&flag); }

  /// Puts values into the options. `place`, for messages: "-np", "job.yaml:3: np".
  void apply(CLI::Option& flag, const std::vector<std::string>& values, const std::string& place);

  std::string help() const;
  /// All spellings with their dashes that work.
  std::vector<std::string> spellings() const;

 private:
  using Values = std::vector<std::string>;
  using Set = std::function<void(const Values&)>;

  /// `names` without dashes, between spaces; one letter: a short option; `=NAME`: see target_of(),
  /// else the first name. `set` throws Refused.
  CLI::Option* add(Takes takes, const std::string& names, std::string value, std::string help,
                   Set set);
  CLI::Option* add_number(const std::string& names, std::string value, std::optional<int>& field,
                          int least, int most, std::string help);
  CLI::Option* add_text(const std::string& names, std::string value, std::string& field,
                        std::string help);
  CLI::Option* add_switch(const std::string& names, bool& field, std::string help);
  CLI::Option* add_action(const std::string& names, Action action, std::string help);
  /// Goes on to mpirun.
  CLI::Option* pass_on(Takes takes, const std::string& names, std::string value,
                       const std::string& notice = {});

  void add_job();
  void add_hosts();
  void add_output();
  void add_settings();
  void add_horovods();
  void add_mpiruns();
  void add_torchruns();
  void add_ignored();
  void add_refused();

  void set_setting(const std::string& variable, const std::string& value);
  void forward_variable(const std::string& assignment);
  void note(std::string line) { options_.notices.push_back(std::move(line)); }

  LaunchOptions& options_;
  CLI::App app_;
  std::map<const CLI::Option*, std::string> targets_;
  std::string group_;  ///< of flags that are added; empty: of another launcher's
  /// Names of other launchers' flags: that work, that change nothing, that are refused.
  std::array<std::string, 3> compatible_;
  std::size_t standing_ = 0;  ///< index into these
  std::string place_;         ///< of the flag that is applied
};

}  // namespace hora::launch
