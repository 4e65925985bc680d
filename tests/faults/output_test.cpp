// Tests what ranks print, what they read, and what horarun --watch shows of them.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "tests/faults/fault_test.h"
#include "tests/support/read_file.h"

namespace hora::launch::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::UnorderedElementsAre;

class Output : public FaultTest {
 protected:
  /// The lines that a job prints, which ends well.
  std::vector<std::string> lines_printed(const std::vector<std::string>& arguments,
                                         const std::vector<std::string>& program,
                                         const std::string& input = {}) {
    LaunchedJob& job = launch(arguments, program, {}, input);
    EXPECT_EQ(job.wait(), 0) << transcript(job);
    return lines_of(job.output());
  }
  /// A shell's command: script(1) gives it a terminal; elsewhere here horarun writes into a pipe.
  LaunchedJob& on_terminal(const std::string& command) {
    LaunchedJob& job =
        start({.arguments = {"--quiet", "--return", "--command", command, "/dev/null"},
               .launcher = "script"});
    EXPECT_EQ(job.wait(), 0) << transcript(job);
    return job;
  }
};

TEST_F(Output, LinesOfRanksDoNotMix) {
  std::vector<std::string> expected;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string start = "rank " + std::to_string(rank) + ": ";
    expected.push_back(start + "ready");
    for (int i = 0; i < 100; ++i) {
      expected.push_back(start + "line " + std::to_string(i) + " " + std::string(60, 'x'));
    }
  }
  auto lines = lines_printed({"-np", "4"}, {"lines", "-", "-", "1"});
  std::ranges::sort(lines);
  std::ranges::sort(expected);
  EXPECT_EQ(lines, expected);
}

TEST_F(Output, PrefixesNameHostAndRank) {
  EXPECT_THAT(
      lines_printed({"-H", "127.0.0.1:1,127.0.0.2:1", "--prefix-output"}, {"none", "-", "-", "1"}),
      UnorderedElementsAre("127.0.0.1:0: rank 0: ready", "127.0.0.2:1: rank 1: ready"));
}

TEST_F(Output, PrefixesAreThereByThemselvesForMoreThanOneRankOnATerminal) {
  for (const int ranks : {2, 1}) {
    LaunchedJob& job = on_terminal(std::string(HORARUN) + " -np " + std::to_string(ranks) + " " +
                                   FAULT_RANK + " none - - 1");
    const bool is_marked = job.output().find("localhost:0: rank 0: ready") != std::string::npos;
    EXPECT_EQ(is_marked, ranks > 1) << transcript(job);
    EXPECT_THAT(job.output(), HasSubstr("rank 0: ready"));
  }
}

TEST_F(Output, RanksKnowHowLongALineIsOnTheTerminal) {
  LaunchedJob& job = on_terminal("stty cols 70; " + std::string(HORARUN) +
                                 " -np 2 sh -c 'echo has $HORARUN_COLUMNS.'; " + HORARUN +
                                 " -np 1 sh -c 'echo has $HORARUN_COLUMNS.' | cat");
  EXPECT_THAT(job.output(), HasSubstr("localhost:0: has 57.")) << "70, less the prefix";
  EXPECT_THAT(job.output(), HasSubstr("\nhas .")) << "a pipe is none";
}

TEST_F(Output, OneFileARankInExactlyThatFolder) {
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("output");
  LaunchedJob& job = launch({"-np", "2", "--output-filename", path}, {"none", "-", "-", "1"});
  ASSERT_EQ(job.wait(), 0) << transcript(job);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = path + "/rank." + std::to_string(rank);
    EXPECT_EQ(internal::test::read_file(file), "rank " + std::to_string(rank) + ": ready\n");
    struct stat status {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
}

TEST_F(Output, IsThatOfTheRanksThatAreAskedForWithTheirInputAndVariables) {
  EXPECT_THAT(lines_printed({"-np", "3", "--ranks", "0,2"}, {"none", "-", "-", "1"}),
              UnorderedElementsAre("rank 0: ready", "rank 2: ready"));
  EXPECT_THAT(lines_printed({"-np", "2"}, {"input", "-", "0", "1"}, "one\ntwo\n"),
              IsSupersetOf({"rank 0: read one", "rank 0: read two"}));
  EXPECT_THAT(lines_printed({"-H", "127.0.0.1:1,127.0.0.2:1", "-x", "FAULTS_VALUE=a b'c"},
                            {"variable", "-", "-", "1"}),
              Contains("rank 1: value a b'c"));
}

/// Runs a shell, which starts horarun on two ranks with these redirections.
JobOptions redirected(const std::string& redirections) {
  return {.arguments = {"-c", std::string("exec \"$0\" \"$@\" ") + redirections, HORARUN, "-np",
                        "2", FAULT_RANK, "none", "-", "-", "1"},
          .launcher = "sh"};
}

TEST_F(Output, LostOutputIsAnError) {
  LaunchedJob& job = start(redirected("> /dev/full"));
  EXPECT_EQ(job.wait(), 74) << transcript(job);
  EXPECT_EQ(job.error_lines("standard output: No space left on device").size(), 1U) << job.error();
}

TEST_F(Output, StandardDescriptorsMayBeClosed) {
  for (const char* closed : {"<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    LaunchedJob& job = start(redirected(closed));
    EXPECT_EQ(job.wait(), 0) << closed << "\n" << transcript(job);
  }
}

/// mpirun binds each of two ranks with all its threads to one core.
TEST_F(Output, EachRankMayUseItsShareOfTheCores) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const auto& line : lines_printed({"-np", "2"}, {"cores", "-", "-", "1"})) {
    const auto number = line.find(" cores") == line.npos ? -1 : std::stoi(line.substr(8));
    EXPECT_TRUE(number == -1 || number >= cores / 2) << line;
  }
  EXPECT_THAT(job_->output(), HasSubstr(" cores"));
}

TEST_F(Output, MpisParagraphsAreShownWithVerbose) {
  LaunchedJob& job = launch({"-np", "2", "--verbose"}, {"kill", "data", "1"});
  ASSERT_EQ(job.wait(), 137) << transcript(job);
  EXPECT_GT(lines_of(job.error()).size(), 1U) << job.error();
}

std::vector<std::string> watched(const Layout& layout) {
  std::vector<std::string> arguments = layout.arguments;
  arguments.insert(arguments.end(), {"--watch", "--watch-interval", "1"});
  return arguments;
}

class Watch : public OnLayouts {};
INSTANTIATE_TEST_SUITE_P(Layouts, Watch, testing::Values(one_node(), virtual_nodes(), two_hosts()),
                         name_of);

TEST_P(Watch, NamesTheRankForWhichTheOthersWait) {
  LaunchedJob& job = launch(watched(GetParam()), {"late", "-", "2", "0"});
  ASSERT_TRUE(job.wait_for("horarun: ")) << transcript(job);
  const std::string name = "most often last: rank 2 (host ";
  EXPECT_TRUE(job.wait_for(name, 2)) << transcript(job);
  const auto lines = job.error_lines(name);
  ASSERT_THAT(lines, Not(IsEmpty())) << transcript(job);
  EXPECT_THAT(lines.back(), HasSubstr(": step "));
  EXPECT_THAT(lines.back(), HasSubstr(" decisions"));
  EXPECT_THAT(lines.back(), HasSubstr(", mostly in \"training\""));
  interrupt(kHang);
}

TEST_F(Output, OfAWatchSaysThatARankIsStopped) {
  LaunchedJob& job = launch(watched(one_node()), {"stop", "negotiation", "1", "0"});
  EXPECT_TRUE(job.wait_for("  stopped")) << transcript(job);
  interrupt(kHang);
}

}  // namespace
}  // namespace hora::launch::test
