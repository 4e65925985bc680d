/// A job under horarun, seen from outside: starts it, reads what it prints, finds and signals its
/// processes, and says what it has left behind.
/// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/launch/control/system.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch::test {

using Seconds = std::chrono::duration<double>;

/// Longer than any job here takes; what is not over by then hangs.
inline constexpr Seconds kHang{30};

struct JobOptions {
  std::vector<std::string> arguments;         ///< of horarun, the program among them
  std::vector<std::string> environment = {};  ///< "NAME=VALUE", added to this process's
  std::string input = {};                     ///< on standard input
  std::string host_name = {};      ///< of the host on which horarun runs; empty: this host's
  std::string hidden = {};         ///< a folder that other hosts do not have
  std::string launcher = HORARUN;  ///< another, to compare with
};

/// A process of the job that has not ended.
struct JobProcess {
  enum class Kind { launcher, agent, guard, rank, mpirun, daemon, other };
  pid_t pid = 0;
  Kind kind = Kind::other;
  bool stopped = false;   ///< by a signal
  int rank = -1;          ///< of guards and ranks
  std::string host = {};  ///< of emulated hosts; empty: this host
  std::string name = {};
};

class LaunchedJob {
 public:
  using Kind = JobProcess::Kind;

  /// Starts it. TMPDIR is a folder of its own. Hosts other than this are emulated, each by a
  /// session of its own: 127.0.0.2, 127.0.0.3...
  explicit LaunchedJob(JobOptions options);
  /// Ends whatever is left.
  ~LaunchedJob();
  LaunchedJob(const LaunchedJob&) = delete;
  LaunchedJob& operator=(const LaunchedJob&) = delete;

  pid_t launcher() const { return launcher_; }

  /// The exit status, or 128 and the signal, as a shell has it; none where horarun goes on for
  /// longer than this.
  std::optional<int> wait(Seconds limit = kHang);
  /// Until `text` is in what it has printed so often; false where it is not within the limit.
  bool wait_for(const std::string& text, int times = 1, Seconds limit = kHang);
  /// Until no process of the job is left; how long that took, none where it is longer.
  std::optional<Seconds> wait_for_no_process(Seconds limit);
  void read_for(Seconds time);
  /// Since the first rank has carried out its fault: until the job's end, where wait() has seen it,
  /// else until now. None where no rank has.
  std::optional<Seconds> since_fault() const;

  const std::string& output() const { return output_; }  ///< standard output so far
  const std::string& error() const { return error_; }    ///< standard error so far
  /// The same without what horarun says of the cores and the network that each job gets.
  std::string complaints() const;
  /// Lines of the standard error that contain it.
  std::vector<std::string> error_lines(const std::string& text) const;

  std::vector<JobProcess> processes() const;
  /// The first of this kind, 0 where there is none. `rank` -1: any.
  pid_t find(Kind kind, int rank = -1, const std::string& host = {}) const;
  /// The same; throws std::runtime_error with a transcript where there is none: 0 as a process's
  /// number would be this process's own group.
  pid_t process(Kind kind, int rank = -1, const std::string& host = {}) const;
  pid_t rank(int number) const { return process(Kind::rank, number); }

  /// After the end: processes, files in TMPDIR, shared memory and semaphores, one a line; empty
  /// where all is well. Waits a moment for what is just ending.
  std::string leftovers() const;
  std::string folder() const { return folder_.path(); }

 private:
  bool read_once(Seconds limit);
  std::string fault_file() const { return folder_.file("fault"); }
  std::string leftovers_now() const;

  internal::test::TemporaryFolder folder_;
  std::string mark_;  ///< a variable in the environment of every process of the job
  std::set<std::string> shared_before_;
  pid_t launcher_ = 0;
  std::optional<int> status_;
  std::chrono::system_clock::time_point ended_;
  UniqueFd output_end_, error_end_;
  std::string output_, error_;
};

/// Whether emulated hosts can have names of their own, which takes root: Open MPI needs them where
/// a host has more than one rank.
bool hosts_can_have_names();
/// Whether they can have JobOptions::hidden, too, which in a plain chroot they cannot.
bool hosts_can_hide_folders();

std::vector<std::string> lines_of(const std::string& text);

/// Output and processes, for failed assertions.
std::string transcript(const LaunchedJob& job);

}  // namespace hora::launch::test
