/// Starts agents, does what the Supervisor decides, and writes what ranks print: to horarun's own
/// standard output and error, files, or both; and what `horarun --watch` says of a job that runs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/control/system.h"
#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {

struct RankOutputOptions {
  bool prefix = false;        ///< "host:rank: " before each line
  std::set<int> shown = {};   ///< ranks whose output is shown; empty: all
  std::string folder = {};    ///< of a file for each rank, "rank.N"; empty: none
  int output = 1, error = 2;  ///< descriptors
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
  std::string failure_;
};

/// Says what guards tell of their ranks. Thread rule: one thread.
class LiveView {
 public:
  LiveView(const std::vector<JobHost>& hosts, Moment now, int generation = 1);

  /// Takes what an agent has passed on. Ranks that the job does not have are ignored.
  void on_message(std::size_t host, const Message& message, Moment now);
  /// A line on the job, one of headings, and one for each rank; of many ranks those that came last
  /// most often, and how many others there are. Each ends with \n.
  std::string table(Moment now) const;

 private:
  struct Rank {
    std::string host;
    bool started = false, stopped = false, ended = false;
    std::optional<RankSeen> seen = {};
    wire::ArrivalsRow late = {};  ///< how often and how late it came last to collectives
  };
  Rank* rank(int number);
  static std::string state_of(const Rank& rank);
  void note(const ArrivalsSeen& seen, Moment now);
  /// Share of the decisions, median, p99, and the phase in which it has held up the others most.
  std::array<std::string, 4> lateness_of(const Rank& rank) const;
  std::string progress(Moment now) const;
  std::vector<std::string> cells_of(std::size_t rank) const;

  std::vector<std::string> host_names_;
  std::vector<Rank> ranks_;
  Moment start_;
  int generation_;
  std::uint64_t steps_ = 0, decisions_ = 0;
  double steps_a_second_ = 0;               ///< between the last two messages
  std::optional<Moment> arrivals_at_ = {};  ///< of the last message
  const Rank* most_often_last_ = nullptr;   ///< of them
};

inline constexpr Moment kDiscoveryLimit{10000};

/// Makes the next generations of an elastic job.
struct ElasticJob {
  ElasticOptions options;
  std::vector<HostSlots> hosts;  ///< without a discovery script all there are
  std::function<JobPlan(const Generation&)> plan;
  /// From the output of the discovery script.
  std::function<tl::expected<std::vector<HostSlots>, std::string>(
      const tl::expected<CapturedOutput, std::string>&)>
      hosts_of = {};
};

struct LauncherOptions {
  JobPlan plan;
  std::optional<ElasticJob> elastic;
  /// By host of the plan: the connection with an agent that has been started; none: the plan has a
  /// command for it.
  std::vector<Connection> agents;
  RankOutputOptions output;
  std::optional<Moment> watch_interval;  ///< --watch: between two tables on standard error
  bool verbose = false;
};

/// Until the job has ended; the exit status of horarun. Throws Error, std::system_error.
int run_launcher(LauncherOptions options);

}  // namespace hora::launch
