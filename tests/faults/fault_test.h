/// Shared by tests of faults: how ranks are laid out, and that each ends and leaves nothing.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/faults/launched_job.h"

namespace hora::launch::test {

/// Arguments of horarun for four ranks.
struct Layout {
  std::string name;
  std::vector<std::string> arguments;
  double limit;  ///< seconds from a rank's death to the job's end
  std::string host_of_last = "localhost";
};

inline std::ostream& operator<<(std::ostream& stream, const Layout& layout) {
  return stream << layout.name;
}

inline Layout one_node() {
  return {"one_node", {"-np", "4"}, 5};
}
inline Layout virtual_nodes() {
  return {"virtual_nodes", {"-np", "4", "--ranks-per-node", "2"}, 5};
}
inline Layout two_hosts() {
  // Not bound: the two hosts would bind to the same cores.
  return {"two_hosts", {"-H", "127.0.0.1:2,127.0.0.2:2", "--binding", "none"}, 10, "127.0.0.2"};
}
inline std::string name_of(const testing::TestParamInfo<Layout>& info) {
  return info.param.name;
}

class FaultTest : public testing::Test {
 protected:
  /// Under horarun with these arguments: fault_rank with those.
  LaunchedJob& launch(std::vector<std::string> arguments, const std::vector<std::string>& program,
                      std::vector<std::string> environment = {}, const std::string& input = {}) {
    arguments.emplace_back(FAULT_RANK);
    arguments.insert(arguments.end(), program.begin(), program.end());
    return start({arguments, std::move(environment), input});
  }
  LaunchedJob& start(JobOptions options) {
    expect_nothing_left();
    job_ = std::make_unique<LaunchedJob>(std::move(options));
    return *job_;
  }
  /// Nodes of two ranks by mpirun alone, which leaves the segments of ranks that it kills.
  LaunchedJob& start_mpirun(std::vector<std::string> arguments, const std::string& variable) {
    const std::string folder = segments_.path().string();
    return start({.arguments = std::move(arguments),
                  .environment = {variable, "HORA_RANKS_PER_NODE=2", "PRTE_ALLOW_RUN_AS_ROOT=1",
                                  "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                  "OMPI_MCA_btl_vader_backing_directory=" + folder,
                                  "OMPI_MCA_btl_sm_backing_directory=" + folder},
                  .launcher = HORA_MPIRUN});
  }
  LaunchedJob& launch_on(const Layout& layout, const std::vector<std::string>& program,
                         std::vector<std::string> environment = {}) {
    return launch(layout.arguments, program, std::move(environment));
  }

  /// A job that goes on without end, all of whose ranks have begun.
  LaunchedJob& running_on(const Layout& layout, const std::string& program = "none") {
    LaunchedJob& job = launch_on(layout, {program, "-", "-", "0"});
    EXPECT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
    return job;
  }

  static bool is_possible(const Layout& layout) {
    return layout.name != two_hosts().name || hosts_can_have_names();
  }

  /// The job has ended with this status and one line that names the cause, which has all `texts`.
  void expect_cause(int status, const std::vector<std::string>& texts, Seconds limit = kHang) {
    const auto ended = job_->wait(limit);
    ASSERT_TRUE(ended) << "still there after " << limit.count() << " s\n" << transcript(*job_);
    EXPECT_EQ(*ended, status) << transcript(*job_);
    const auto lines = job_->error_lines("horarun: ");
    ASSERT_FALSE(lines.empty()) << transcript(*job_);
    for (const std::string& text : texts) {
      EXPECT_THAT(lines.back(), testing::HasSubstr(text)) << transcript(*job_);
    }
    EXPECT_EQ(std::ranges::count_if(
                  lines, [&](const auto& line) { return line.find(texts.front()) != line.npos; }),
              1)
        << transcript(*job_);
    for (const char* noise :
         {"MPI_ABORT was invoked", "Primary job", "mpirun noticed", "mpiexec"}) {
      EXPECT_THAT(job_->error() + job_->output(), testing::Not(testing::HasSubstr(noise)));
    }
  }

  /// expect_cause() of a fault that a rank carries out, after which horarun and all ranks have
  /// ended within the limit.
  void expect_cause_soon(int status, const std::vector<std::string>& texts, Seconds limit) {
    expect_cause(status, texts);
    if (HasFatalFailure()) return;
    EXPECT_LE(job_->since_fault().value_or(kHang), limit) << transcript(*job_);
    EXPECT_EQ(job_->find(JobProcess::Kind::rank), 0) << transcript(*job_);
  }

  /// Whatever happened.
  void expect_nothing_left() {
    if (!job_) return;
    EXPECT_TRUE(job_->wait(Seconds(0.1)) || HasFatalFailure()) << "the job goes on";
    EXPECT_EQ(job_->leftovers(), "") << transcript(*job_);
    job_.reset();
  }
  void TearDown() override { expect_nothing_left(); }

  /// Ends a job that runs, as a user does.
  void interrupt(Seconds limit = Seconds(5)) {
    ::kill(job_->launcher(), SIGINT);
    EXPECT_EQ(job_->wait(limit), 130) << transcript(*job_);
  }

  std::unique_ptr<LaunchedJob> job_;

 private:
  internal::test::TemporaryFolder segments_;
};

inline constexpr char kNoHosts[] = "two hosts with names of their own need root";

/// Two emulated hosts with two ranks each, those of the second 2 and 3.
class TwoHosts : public FaultTest {
 protected:
  void SetUp() override {
    if (!is_possible(two_hosts())) GTEST_SKIP() << kNoHosts;
  }
  LaunchedJob& running() { return running_on(two_hosts()); }
};

class OnLayouts : public FaultTest, public testing::WithParamInterface<Layout> {
 protected:
  /// From a rank's death to the job's end.
  Seconds limit() const { return Seconds(GetParam().limit); }
  void SetUp() override {
    if (!is_possible(GetParam())) GTEST_SKIP() << kNoHosts;
  }
};

class RunningJob : public OnLayouts {
 protected:
  /// The host of the last ranks, as LaunchedJob::process() names it.
  std::string last_host() const {
    return GetParam().name == two_hosts().name ? GetParam().host_of_last : "";
  }
  LaunchedJob& running(const std::string& program = "none") {
    return running_on(GetParam(), program);
  }
};

/// "rank 3 (host b, pid 4711) ".
inline std::string rank_text(int rank, const std::string& host, pid_t pid) {
  return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(pid) + ") ";
}

}  // namespace hora::launch::test
