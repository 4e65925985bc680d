// Promise 12: what ranks did last outlives them, and `horarun --diagnose` says from that what
// happened.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/flight/flight_recorder.h"
#include "tests/faults/fault_test.h"
#include "tests/support/read_file.h"

namespace hora::launch::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr int kRanks = 4;

unsigned mode_of(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode : 0;
}

/// On two hosts, where there can be two.
class Record : public FaultTest {
 protected:
  LaunchedJob& launch_recorded(const std::vector<std::string>& program,
                               const std::vector<std::string>& limits = {}) {
    std::vector<std::string> arguments = layout_.arguments;
    arguments.insert(arguments.end(), {"--record-directory", records()});
    arguments.insert(arguments.end(), limits.begin(), limits.end());
    return launch(arguments, program);
  }
  /// Diagnosis of a job whose ranks give up after 3 s.
  std::vector<std::string> diagnosis_of_hang(const std::string& fault, const std::string& ranks) {
    std::filesystem::remove_all(records());
    LaunchedJob& job = launch_recorded({fault, "negotiation", ranks},
                                       {"--stall-warning", "1s", "--timeout", "3s"});
    EXPECT_NE(job.wait().value_or(0), 0) << transcript(job);
    expect_records();
    return diagnosis();
  }
  std::string records() const { return folder_.file("records"); }
  /// From a rank's death to the job's end.
  Seconds limit() const { return Seconds(layout_.limit); }

  /// Each rank has left its record, for nobody else to read, and nothing else is there.
  void expect_records() const {
    EXPECT_EQ(mode_of(records()), S_IFDIR | 0700U);
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string path = internal::record_file(records(), rank);
      EXPECT_EQ(mode_of(path), S_IFREG | 0600U) << path;
      const std::string text = internal::test::read_file(path);
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(json.is_object()) << path << ": " << text;
      EXPECT_EQ(json.value("rank", -1), rank) << text;
      EXPECT_TRUE(json.contains("collectives") && !json["collectives"].empty()) << text;
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(records()), {}), kRanks);
  }

  /// The lines of `horarun --diagnose`: what happened, an empty one, and a table.
  std::vector<std::string> diagnosis() const {
    LaunchedJob horarun({.arguments = {"--diagnose", records()}});
    EXPECT_EQ(horarun.wait(), 0) << horarun.error();
    auto lines = lines_of(horarun.output());
    EXPECT_GE(lines.size(), 3U + kRanks) << horarun.output();
    lines.resize(std::max(lines.size(), std::size_t{1}));
    return lines;
  }

  const Layout layout_ = is_possible(two_hosts()) ? two_hosts() : one_node();
  internal::test::TemporaryFolder folder_;
};

TEST_F(Record, NamesTheRankThatDiedFirstAndWhoMerelyWaited) {
  launch_recorded({"kill", "negotiation", "3"});
  expect_cause_soon(137, {"rank 3 (host ", "was killed by signal 9 (SIGKILL)"}, limit());
  expect_records();
  const auto lines = diagnosis();
  EXPECT_THAT(lines.front(),
              AllOf(StartsWith("rank 3 (host "), HasSubstr(") was killed by signal 9 (SIGKILL) "),
                    HasSubstr(" after the start, as the first of all")));
  EXPECT_THAT(lines, Contains(HasSubstr("was killed by signal 9 (SIGKILL) at ")).Times(1));
}

TEST_F(Record, SaysThatAllRanksWereKilledAtOnce) {
  LaunchedJob& job = launch_recorded({"none", "-", "-", "0"});
  ASSERT_TRUE(job.wait_for(": ready", kRanks)) << transcript(job);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back(job.rank(rank));
  // At first none can react to another's end, nor to a signal of horarun's.
  for (const int signal : {SIGSTOP, SIGKILL}) {
    for (const pid_t rank : ranks) ::kill(rank, signal);
  }
  expect_cause(137, {"rank ", "was killed by signal 9 (SIGKILL)"}, limit());
  expect_records();
  EXPECT_THAT(diagnosis().front(), AllOf(StartsWith("all 4 ranks ended at once, within "),
                                         HasSubstr(": each was killed by signal 9 (SIGKILL) ")));
}

TEST_F(Record, NamesTheRankOrTheTensorsThatOthersWaitFor) {
  EXPECT_THAT(
      diagnosis_of_hang("omit", "1").front(),
      AllOf(StartsWith("rank 1 (host "),
            HasSubstr(") never came to allreduce \"step5\", for which ranks 0, 2, 3 waited 3."),
            HasSubstr(": it went on to allreduce \"large\"")));
  EXPECT_THAT(diagnosis_of_hang("skip", "1").front(),
              AllOf(StartsWith("ranks wait for each other at different collectives: "),
                    MatchesRegex(".*rank 1 \\(host .*\\) at allreduce \"large\".*"),
                    HasSubstr("ranks 0, 2, 3 at allreduce \"step5\"")));
  const auto lines = diagnosis_of_hang("stop", "2");
  EXPECT_THAT(
      lines.front(),
      AllOf(StartsWith("rank 2 (host "),
            HasSubstr(") never came to allreduce \"step5\", for which ranks 0, 1, 3 waited 3."),
            HasSubstr(": it was stopped")));
  // The table's rows of those who merely waited.
  EXPECT_THAT(lines, Contains(HasSubstr("  waits for allreduce \"step5\" 3.")).Times(kRanks - 1));
}

TEST_F(Record, IsThereOfRanksThatHadToBeKilled) {
  LaunchedJob& job = launch_recorded({"deaf", "negotiation", "all"});
  ASSERT_TRUE(job.wait_for(": ready", kRanks)) << transcript(job);
  job.read_for(Seconds(0.5));
  ::kill(job.launcher(), SIGTERM);
  job.read_for(Seconds(0.2));
  ::kill(job.launcher(), SIGTERM);
  EXPECT_EQ(job.wait(limit()), 143) << transcript(job);
  expect_records();
  EXPECT_THAT(diagnosis(), Contains(HasSubstr("was ended by horarun (signal 9")).Times(kRanks));
}

TEST_F(Record, OneThatCannotBeWrittenIsSaidOnce) {
  std::ofstream(records()) << "no folder";
  LaunchedJob& job = launch_recorded({"kill", "negotiation", "3"});
  EXPECT_EQ(job.wait(), 137) << transcript(job);
  const auto lines = job.error_lines("no flight record of rank ");
  ASSERT_EQ(lines.size(), 1U) << transcript(job);
  EXPECT_THAT(lines.front(), HasSubstr("\" is no folder"));
}

TEST_F(Record, AJobWithoutFaultLeavesNone) {
  LaunchedJob& job = launch_recorded({"none", "-", "-"});
  EXPECT_EQ(job.wait(), 0) << transcript(job);
  EXPECT_FALSE(std::filesystem::exists(records()));
}

}  // namespace
}  // namespace hora::launch::test
