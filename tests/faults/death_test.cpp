// Promises 1, 3, 4, 6 and 11: whose end ends a job, of its ranks and of the processes that it
// consists of, is named, and everything ends; ranks that shut hora down as they should.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "core/base/process.h"
#include "tests/faults/fault_test.h"
#include "tests/support/random_draws.h"
#include "tests/support/seed.h"

namespace hora::launch::test {
namespace {

using Kind = JobProcess::Kind;
using testing::AnyOf;
using testing::HasSubstr;

/// fault_rank's, and of signals from outside.
const std::vector<std::string> kPhases{"negotiation", "init", "data", "shutdown", "run", "start"};

struct Fault {
  std::string name;  ///< of one that a rank carries out: fault_rank's
  int status;
  std::vector<std::string> texts;  ///< of the last line; RANK: the rank and its host, HOST: that
  Kind process = Kind::other;      ///< that gets `signal` from outside
  int signal = SIGKILL;

  bool is_own() const { return process == Kind::other; }
  bool is_hang() const { return name == "stop" || name == "spin" || name == "skip"; }
};

const std::vector<Fault> kFaults{
    {"kill", 137, {"RANK", "was killed by signal 9 (SIGKILL)"}},
    {"exit0", 1, {"RANK"}},
    {"exit3", 3, {"RANK", "exit status 3"}},
    {"throw", 134, {"RANK", "the application's own error"}},
    {"abort", 7, {"RANK", "exit status 7"}},
    {"caught", 12, {"RANK", "exit status 12", "own error"}},
    {"segv", 139, {"RANK", "was killed by signal 11 (SIGSEGV)"}},
    {"kill all", 137, {"rank ", "was killed by signal 9 (SIGKILL)"}},
    {"a rank", 137, {"RANK", " s after its start", "by signal 9 (SIGKILL)"}, Kind::rank},
    {"a rank", 143, {"RANK", "by signal 15 (SIGTERM)"}, Kind::rank, SIGTERM},
    {"mpirun", 137, {"mpirun was killed by signal 9 (SIGKILL)"}, Kind::mpirun},
    {"mpirun", 143, {"mpirun was ended by SIGTERM"}, Kind::mpirun, SIGTERM},
    {"a guard", 137, {"RANK", "guard"}, Kind::guard},
    {"an agent", 69, {"host HOST", "agent has ended"}, Kind::agent},
    {"a daemon", 137, {"HOST", "daemon"}, Kind::daemon},
    {"horarun", 130, {}, Kind::launcher, SIGINT},
    {"horarun", 143, {}, Kind::launcher, SIGTERM},
    {"horarun", 137, {}, Kind::launcher},
    {"stop", 1, {"RANK"}},
    {"spin", 1, {"RANK"}},
    {"skip", 1, {"RANK"}}};

class Cause : public OnLayouts {
 protected:
  bool can_be(const Fault& fault, const std::string& phase, int rank) const {
    if (fault.is_own() == (phase == "start" || phase == "run")) return false;
    if (fault.process == Kind::daemon) return host_of(rank) == "127.0.0.2" && phase == "run";
    if (fault.process == Kind::rank || fault.process == Kind::guard) return phase == "run";
    if (fault.name == "caught") return rank == 2;
    if (fault.name == "abort") return phase != "init";  // MPI does not allow that
    if (fault.name == "skip") return phase == "negotiation";
    // A rank that runs may take as long as it likes while others are in shutdown().
    return fault.name != "spin" || phase != "shutdown";
  }

  void expect_named(const Fault& fault, const std::string& phase, int rank, Seconds delay = {}) {
    const std::string number = std::to_string(rank);
    SCOPED_TRACE(fault.name + " in " + phase + " of rank " + number);
    std::vector<std::string> arguments = GetParam().arguments;
    if (fault.is_hang()) {
      arguments.insert(arguments.end(),
                       {"--stall-warning", "1s", "--timeout", "3s", "--init-timeout", "3s"});
    }
    std::vector<std::string> program{"none", "-", "-", "0"}, texts = fault.texts;
    if (fault.is_own()) program = {fault.name, phase, number};
    if (fault.name == "kill all") program = {"kill", phase, "all"};
    LaunchedJob& job = launch(arguments, program);
    EXPECT_TRUE(phase != "run" || job.wait_for(": ready", 4)) << transcript(job);
    job.read_for(delay);
    const auto begin = std::chrono::steady_clock::now();
    if (!fault.is_own()) {
      const pid_t process = send(fault, rank);
      if (process == 0 && phase == "start") return interrupt();
      EXPECT_GT(process, 0) << transcript(job);
      if (fault.process == Kind::rank || fault.process == Kind::guard) {
        texts.push_back("pid " + std::to_string(process));
      }
    } else if (fault.name == "exit0") {
      texts.emplace_back(phase == "init" ? "before it called hora::init" : "shutdown");
    }
    for (std::string& text : texts) {
      if (text == "RANK") text = "rank " + number + " (host HOST";
      if (const auto at = text.find("HOST"); at != text.npos) text.replace(at, 4, host_of(rank));
    }
    if (texts.empty()) {
      EXPECT_EQ(job.wait(Seconds(5)), fault.status) << transcript(job);
      EXPECT_TRUE(job.wait_for_no_process(Seconds(10))) << transcript(job);
    } else if (fault.is_hang() || phase == "start") {
      EXPECT_NE(job.wait().value_or(0), 0) << transcript(job);
      const std::string name = fault.process == Kind::mpirun ? "mpirun " : "agent";
      EXPECT_THAT(job.error(),
                  AnyOf(HasSubstr(fault.is_own() ? texts[0] : name), HasSubstr("ranks " + number)));
    } else if (!fault.is_own()) {
      expect_cause(fault.status, texts, Seconds(10));
    } else {
      // That it does not come to hora::init is known when the others have waited in it for 5 s.
      const bool is_awaited = fault.name == "exit0" && phase == "init";
      expect_cause_soon(fault.status, texts, limit() + Seconds(is_awaited ? 5 : 0));
      EXPECT_THAT(job.error(), testing::Not(HasSubstr("Process received signal")))
          << "MPI's stack of an abort whose reason is known";
    }
    const Seconds since = std::chrono::steady_clock::now() - begin;
    seconds_.push_back(job.since_fault().value_or(since).count());
  }

  std::vector<double> seconds_;  ///< from each fault to the job's end

 private:
  std::string host_of(int rank) const {
    if (GetParam().name != two_hosts().name) return "localhost";
    return rank < 2 ? "127.0.0.1" : "127.0.0.2";
  }
  /// Gives the number of the process that gets the signal; 0 where it is not there.
  pid_t send(const Fault& fault, int rank) const {
    const bool is_of_rank = fault.process == Kind::rank || fault.process == Kind::guard;
    const std::string host = host_of(fault.process == Kind::mpirun ? 0 : rank);
    pid_t process = job_->launcher();
    if (fault.process != Kind::launcher) {
      process = job_->find(fault.process, is_of_rank ? rank : -1, host == "127.0.0.2" ? host : "");
    }
    if (process > 0) ::kill(process, fault.signal);
    return process;
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, Cause, testing::Values(one_node(), virtual_nodes(), two_hosts()),
                         name_of);

/// On one node what any program may do, on two hosts a killed rank, in each phase.
TEST_P(Cause, OfAJobsEndIsNamed) {
  const std::string layout = GetParam().name;
  for (std::size_t i = 0; i < kFaults.size(); ++i) {
    for (const std::string& phase : kPhases) {
      const bool in_all = layout == one_node().name ? i < 5 : layout == two_hosts().name && i == 0;
      const bool is_usual = phase == "run" || phase == (i % 2 == 0 ? "negotiation" : "data");
      if (!can_be(kFaults[i], phase, 2) || kFaults[i].is_hang() || phase == "start") continue;
      if (in_all || is_usual) expect_named(kFaults[i], phase, 2);
    }
  }
}

/// TEST_FAULTS says how many.
TEST_P(Cause, OfADrawnFaultIsNamed) {
  auto random = internal::test::generator();
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const auto count = internal::test::number_in("TEST_FAULTS").value_or(2);
  while (seconds_.size() < count) {
    const Fault& fault = kFaults[below(kFaults.size())];
    const std::string& phase = kPhases[below(kPhases.size())];
    const int rank = static_cast<int>(below(4));
    if (!can_be(fault, phase, rank)) continue;
    expect_named(fault, phase, rank, Seconds(static_cast<double>(below(400)) / 1000));
  }
  std::ranges::sort(seconds_);
  std::printf("%zu faults: median %.1f s, worst %.1f s\n", seconds_.size(),
              seconds_[seconds_.size() / 2], seconds_.back());
}

TEST_F(FaultTest, ARankMayLeaveAfterShutdownWithAnyStatusAndThatIsTheJobs) {
  launch({"-np", "2"}, {"exit3", "end", "1"});
  expect_cause(3, {"rank 1 (host ", "exit status 3"});
}

TEST_F(FaultTest, AJobWithoutFaultSaysNothing) {
  for (const auto& [ranks, program] : {std::pair("1", "none"), {"2", "none"}, {"2", "late"}}) {
    LaunchedJob& job = launch({"-np", ranks}, {program, "-", "1", "50"});
    EXPECT_EQ(job.wait(), 0) << transcript(job);
    EXPECT_EQ(job.complaints(), "");
  }
}

TEST_P(Cause, WhoWaitsForARankThatHasShutDownGetsAnErrorWithinASecond) {
  LaunchedJob& job = launch_on(GetParam(), {"finish", "-", "3", "0"});
  EXPECT_TRUE(job.wait_for("rank 3 has called shutdown()", 1)) << transcript(job);
  EXPECT_LT(job.since_fault().value_or(kHang), Seconds(1)) << transcript(job);
  ASSERT_TRUE(job.wait(Seconds(10))) << transcript(job);
  EXPECT_NE(job.wait(), 0) << transcript(job);
}

/// The guard finds the end of its parent and a signal at once, when it has killed the rank.
TEST_F(FaultTest, ARankWhoseGuardIsLateEndsOnce) {
  for (int i = 0; i < 3; ++i) {
    LaunchedJob& job = running_on(one_node());
    const pid_t guard = job.process(Kind::guard, 1);
    ::kill(guard, SIGSTOP);
    ::kill(static_cast<pid_t>(internal::process_stat(guard)->parent), SIGKILL);
    job.read_for(Seconds(0.2));
    ::kill(guard, SIGCONT);
    expect_cause(137, {"rank 1 (host ", "MPI's process that started it"}, Seconds(10));
  }
}

TEST_F(FaultTest, WhoHasClosedAllDescriptorsEndsTheJobAtOnce) {
  for (const char* phase : {"shutdown", "end"}) {
    launch({"-np", "2"}, {"close", phase, "1"});
    expect_cause_soon(1, {"rank 1 (", "the program has closed all descriptors"}, Seconds(5));
  }
}

TEST_F(FaultTest, AHundredStartsInOneProcessTakeNothing) {
  LaunchedJob& job = launch({"-np", "2"}, {"again", "-", "-"});
  ASSERT_EQ(job.wait(Seconds(120)), 0) << transcript(job);
  const auto lines = lines_of(job.output());
  for (const std::string& line : lines) {
    std::istringstream words(line);
    std::string rank, number, what, then;
    double before = 0, after = 0;
    ASSERT_TRUE(words >> rank >> number >> what >> before >> then >> after) << line;
    EXPECT_LE(after, what == "memory" ? before * 1.01 : before) << line;
  }
  EXPECT_EQ(lines.size(), 6U) << transcript(job);
}

}  // namespace
}  // namespace hora::launch::test
