// Plain mpirun --with-ft ulfm, which leaves the survivors of a rank's death alone: hora itself ends
// them, on all nodes, with the first cause.
#include <signal.h>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using Kind = JobProcess::Kind;

constexpr int kRanks = 4;

class Ulfm : public FaultTest, public testing::WithParamInterface<int> {
 protected:
  /// Two nodes of two ranks.
  LaunchedJob& running() {
    LaunchedJob& job =
        start_mpirun({"--with-ft", "ulfm", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "-np",
                      std::to_string(kRanks), FAULT_RANK, "none", "-", "-", "0"},
                     "HORA_LOG_LEVEL=info");
    EXPECT_TRUE(job.wait_for(": ready", kRanks)) << transcript(job);
    return job;
  }
};
std::string name_of_victim(const testing::TestParamInfo<int>& info) {
  return "victim_" + std::to_string(info.param);
}
INSTANTIATE_TEST_SUITE_P(Ulfm, Ulfm, testing::Range(0, kRanks), name_of_victim);

TEST_P(Ulfm, SurvivorsOfAllNodesEndWithTheFirstCause) {
  LaunchedJob& job = running();
  const pid_t victim = job.rank(GetParam());
  const auto begin = std::chrono::steady_clock::now();
  ::kill(victim, SIGKILL);
  EXPECT_TRUE(job.wait(Seconds(10))) << transcript(job);
  EXPECT_EQ(job.find(Kind::rank), 0) << transcript(job);
  RecordProperty("milliseconds",
                 static_cast<int>(Seconds(std::chrono::steady_clock::now() - begin) /
                                  std::chrono::milliseconds(1)));
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == GetParam()) continue;
    const auto said = job.error_lines("hora info: rank " + std::to_string(rank) + " (host ");
    ASSERT_EQ(said.size(), 1U) << transcript(job);
    const std::string name = "rank " + std::to_string(GetParam()) + " ";
    EXPECT_THAT(said.front(),
                AllOf(HasSubstr("uncaught exception of type hora::Error"),
                      AnyOf(HasSubstr(name + "has ended"), HasSubstr(name + "(host "))))
        << transcript(job);
  }
}

}  // namespace
}  // namespace hora::launch::test
