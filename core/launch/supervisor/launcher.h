/// Starts agents, does what the Supervisor decides, and writes what ranks print: to horarun's own
/// standard output and error, files, or both.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/control/system.h"
#include "core/launch/live/live_view.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {

struct RankOutputOptions {
  bool prefix = false;        ///< "host:rank: " before each line
  std::set<int> shown = {};   ///< ranks whose output is shown; empty: all
  std::string folder = {};    ///< of a file for each rank, "rank.N"; empty: none
  int output = 1, error = 2;  ///< descriptors
  /// Called before anything is written to these; or empty.
  std::function<void()> before_output = {};
};

class RankOutputWriter {
 public:
  /// Makes the folder (mode 0700) where there is none. Throws Error(invalid_argument) that names
  /// it.
  explicit RankOutputWriter(RankOutputOptions options);

  /// Whole lines, which end by \n or \r, so that those of several ranks do not mix.
  void write(int rank, const std::string& host, bool error, std::string_view bytes);
  /// Called about ten times a second: without prefixes what has had no end for 200 ms (a question,
  /// a bar of progress) is written, too.
  void on_time(std::chrono::steady_clock::time_point now);
  /// Lines that have no end yet.
  void finish();
  /// Whether the line shown last has no end yet.
  bool in_line() const { return in_line_; }
  /// Where output was lost first, and why: "standard output: No space left on device"; empty: it
  /// was not, or its reader is gone.
  const std::string& failure() const { return failure_; }

 private:
  struct Stream {
    std::string host;
    std::string line;                                                       ///< its beginning
    std::optional<std::chrono::steady_clock::time_point> waits_since = {};  ///< for its end
  };
  void show(bool error, std::string_view bytes);
  void write_all(int descriptor, const std::string& name, std::string_view bytes);
  std::string path_of(int rank) const { return options_.folder + "/rank." + std::to_string(rank); }
  int file_of(int rank);

  RankOutputOptions options_;
  std::map<std::pair<int, bool>, Stream> streams_;
  std::map<int, UniqueFd> files_;
  bool in_line_ = false;
  std::string failure_;
};

struct LauncherOptions {
  JobPlan plan;
  /// By host of the plan: the connection with an agent that has been started; none: the plan has a
  /// command for it.
  std::vector<Connection> agents;
  RankOutputOptions output;
  std::optional<LiveOptions> live;  ///< --watch
  bool verbose = false;
};

/// Until the job has ended; the exit status of horarun. Throws Error, std::system_error.
int run_launcher(LauncherOptions options);

}  // namespace hora::launch
