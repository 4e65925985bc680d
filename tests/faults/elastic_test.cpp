// horarun --elastic: what a job loses ends a generation, and another goes on from the last
// checkpoint; what is no loss ends the job as ever.
#include <filesystem>
#include <fstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using Kind = JobProcess::Kind;
using testing::HasSubstr;

/// Jobs of which another generation goes on at the step that a file says.
template <class Base>
class ElasticJob : public Base {
 protected:
  LaunchedJob& run(std::vector<std::string> arguments, const std::vector<std::string>& program) {
    arguments.insert(arguments.begin(), {"--elastic", "--binding", "none"});
    return this->launch(std::move(arguments), program,
                        {"FAULTS_PROGRESS=" + this->folder_.file("step")});
  }
  LaunchedJob& running(const std::vector<std::string>& arguments, int ranks = 4) {
    LaunchedJob& job = run(arguments, {"none", "-", "-", "0"});
    EXPECT_TRUE(job.wait_for(": ready", ranks)) << transcript(job);
    return job;
  }
  /// The next generation runs, whose line has all `texts`.
  void expect_recovery(int generation, const std::vector<std::string>& texts) {
    LaunchedJob& job = *this->job_;
    const std::string begin = "horarun: generation " + std::to_string(generation) + ": ";
    ASSERT_TRUE(job.wait_for(begin, 1, Seconds(15))) << transcript(job);
    for (const std::string& text : texts) {
      EXPECT_THAT(job.error_lines(begin).front(), HasSubstr(text)) << transcript(job);
    }
  }
  internal::test::TemporaryFolder folder_;
};

using Elastic = ElasticJob<OnLayouts>;

TEST_P(Elastic, ALostRankOrProcessEndsAGeneration) {
  LaunchedJob& job = running(GetParam().arguments);
  int generation = 1;
  for (const auto& [kind, number, text] :
       {std::tuple(Kind::rank, SIGKILL, "rank 1 (host "), std::tuple(Kind::guard, SIGKILL, "guard"),
        std::tuple(Kind::mpirun, SIGKILL, "mpirun was killed by signal 9 (SIGKILL)"),
        std::tuple(Kind::rank, SIGSEGV, "was killed by signal 11 (SIGSEGV)")}) {
    SCOPED_TRACE(text);
    ::kill(job.process(kind, kind == Kind::mpirun ? -1 : 1), number);
    expect_recovery(++generation, {text, "; 4 ranks on ", " go on at step "});
    ASSERT_TRUE(job.wait_for(": ready", 4 * generation)) << transcript(job);
  }
  interrupt();
  EXPECT_THAT(job.error_lines("horarun: ").back(), HasSubstr("ending the job after signal 2"));
}

TEST_P(Elastic, AProgramThatFailsAtOneStepEndsTheJob) {
  run(GetParam().arguments, {"exit3", "negotiation", "1"});
  expect_cause(3, {"the job ends: rank 1 has failed 3 times from step 5 on"});
}

TEST_P(Elastic, AJobThatLosesNothingIsAsEver) {
  LaunchedJob& job = run(GetParam().arguments, {"none", "-", "-"});
  EXPECT_EQ(job.wait(), 0) << transcript(job);
  EXPECT_EQ(job.complaints(), "");
}

INSTANTIATE_TEST_SUITE_P(, Elastic, testing::Values(one_node(), two_hosts()), name_of);

using ElasticHosts = ElasticJob<TwoHosts>;

TEST_F(ElasticHosts, ASpareHostTakesTheRanksOfALostOneElseFewerGoOn) {
  LaunchedJob& job =
      running({"-np", "4", "--min-np", "2", "-H", "127.0.0.1:2,127.0.0.2:2,127.0.0.3:2",
               "--blacklist-cooldown-range", "60", "60"});
  ::kill(job.process(Kind::agent, -1, "127.0.0.2"), SIGKILL);
  expect_recovery(2, {"host 127.0.0.2: its agent has ended", "4 ranks on 127.0.0.1, 127.0.0.3 go"});
  const pid_t silent = job.process(Kind::agent, -1, "127.0.0.3");
  ::kill(silent, SIGSTOP);
  expect_recovery(3, {"host 127.0.0.3 has not been heard from for 5 s", "2 ranks on 127.0.0.1 go"});
  ::kill(silent, SIGCONT);
  interrupt();
  EXPECT_TRUE(job.wait_for_no_process(Seconds(10))) << transcript(job);
}

TEST_F(ElasticHosts, WithTooFewHostsItWaitsAndThenEnds) {
  const std::vector<std::string> hosts{"-H", "127.0.0.1:2,127.0.0.2:2", "--elastic-timeout", "2"};
  for (const char* pause : {"1", "60"}) {
    std::vector<std::string> arguments = hosts;
    arguments.insert(arguments.end(), {"--blacklist-cooldown-range", pause, pause});
    LaunchedJob& job = running(arguments);
    ::kill(job.process(Kind::agent, -1, "127.0.0.2"), SIGKILL);
    EXPECT_TRUE(job.wait_for("2 of the 4 ranks that --min-np asks for have a host; the job waits"))
        << transcript(job);
    if (*pause == '1') {
      expect_recovery(2, {"4 ranks on 127.0.0.1, 127.0.0.2 go on"});
      interrupt();
    } else {
      expect_cause(69, {"the job ends: 2 of the 4 ranks", "for 2 s (--elastic-timeout)"});
    }
  }
}

TEST_F(ElasticHosts, AHostWhoseAgentGetsSigtermIsLeftOut) {
  LaunchedJob& job = running({"-np", "4", "--min-np", "2", "-H", "127.0.0.1:2,127.0.0.2:2"});
  ::kill(job.process(Kind::agent, -1, "127.0.0.2"), SIGTERM);
  expect_recovery(2, {"127.0.0.2 is to be used no more; 2 ranks on 127.0.0.1 go on at step "});
  interrupt();
  EXPECT_TRUE(job.wait_for_no_process(Seconds(10))) << transcript(job);
}

TEST_F(ElasticHosts, TheScriptSaysWhichHostsThereAre) {
  const std::string script = folder_.file("hosts.sh");
  const auto print = [&](const std::string& hosts) {
    const std::string next = script + ".next";
    std::ofstream(next) << "#!/bin/sh\n" << hosts << "\n";
    std::filesystem::permissions(next, std::filesystem::perms::owner_all);
    std::filesystem::rename(next, script);
  };
  print("echo 127.0.0.1:2");
  LaunchedJob& job = running(
      {"--min-np", "2", "--host-discovery-script", script, "--blacklist-cooldown-range", "1", "1"},
      2);
  print("echo no hosts; exit 3");
  EXPECT_TRUE(job.wait_for(
      "it has ended with exit status 3, and printed \"no hosts\"; the hosts stay as they were"))
      << transcript(job);
  print("echo 127.0.0.1:2; echo 127.0.0.2");
  expect_recovery(2, {"127.0.0.2 has come; 3 ranks on 127.0.0.1, 127.0.0.2 go on at step "});
  ::kill(job.rank(1), SIGKILL);
  expect_recovery(3, {"; 3 ranks on 127.0.0.1, 127.0.0.2 go on at step "});
  print("echo 127.0.0.2:2");
  expect_recovery(4, {"127.0.0.1 is to be used no more; 2 ranks on 127.0.0.2 go on at step "});
  interrupt();
}

}  // namespace
}  // namespace hora::launch::test
