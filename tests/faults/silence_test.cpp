// Promise 3: where one side is not heard from any more, everything ends within 35 s.
#include <signal.h>

#include <thread>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;
using Kind = JobProcess::Kind;

class Silence : public TwoHosts {
 protected:
  using Clock = std::chrono::steady_clock;

  /// The limit of promise 3, and a second for a busy machine.
  static constexpr Seconds kLimit{36};
};

TEST_F(Silence, AHostThatHangsIsNamed) {
  LaunchedJob& job = running();
  std::vector<pid_t> stopped;
  for (const JobProcess& process : job.processes()) {
    if (process.host != "127.0.0.2") continue;
    ::kill(process.pid, SIGSTOP);
    stopped.push_back(process.pid);
  }
  EXPECT_EQ(job.wait(kLimit), 69) << transcript(job);
  const auto ranks_here = job.processes();
  EXPECT_TRUE(std::ranges::none_of(ranks_here, [](const JobProcess& each) {
    return each.kind == Kind::rank && each.host != "127.0.0.2";
  })) << transcript(job);
  EXPECT_THAT(job.error(), HasSubstr("host 127.0.0.2 has not been heard from for 30 s"));
  EXPECT_THAT(job.error(), HasSubstr("its ranks: 2, 3"));
  // When it goes on, it ends what it runs.
  for (const pid_t process : stopped) ::kill(process, SIGCONT);
  EXPECT_TRUE(job.wait_for_no_process(Seconds(5))) << transcript(job);
}

TEST_F(Silence, WithoutItsLauncherAJobEnds) {
  LaunchedJob& job = running();
  ::kill(job.launcher(), SIGSTOP);
  const auto only_launcher = [&] {
    const auto left = job.processes();
    return std::ranges::all_of(left, [](const auto& each) { return each.kind == Kind::launcher; });
  };
  for (const auto end = Clock::now() + kLimit; Clock::now() < end && !only_launcher();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(only_launcher()) << transcript(job);
  ::kill(job.launcher(), SIGCONT);
  EXPECT_EQ(job.wait(Seconds(10)), 69) << transcript(job);
}

}  // namespace
}  // namespace hora::launch::test
