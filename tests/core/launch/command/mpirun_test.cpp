/// Each property of the command line that horarun relies on, shown by the real mpirun. Hosts are
/// names of this machine's loopback; the remote shell is a script that runs the daemon here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/launch/command/command.h"
#include "core/launch/command/mpi.h"
#include "tests/core/launch/texts.h"
#include "tests/support/read_file.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::ElementsAre;

std::string mpirun_path() {
  const char* const other = std::getenv("TEST_MPIRUN");
  return other == nullptr ? HORA_MPIRUN : other;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class Mpirun : public testing::Test {
 protected:
  void SetUp() override {
    auto found = find_mpi(mpirun_path(), {}, {});
    if (!found) GTEST_SKIP() << found.error();
    input_.mpi = *found;
    input_.remote_shell = {folder_.file("shell"), "--remote-shell"};
    input_.rank_command = {folder_.file("rank")};
    input_.allow_run_as_root = true;
    // As an agent does it: other variables than mpirun's, and gone before the daemon has connected.
    // A TMPDIR for each host: of two daemons of Open MPI 4 that start in one at once one fails.
    script("shell",
           "printf '%s\\n' \"$@\" > DIR/call\n"
           "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
           "host=$1; shift\n"
           "unset OF_MPIRUN; export OF_DAEMON=$host TMPDIR=DIR/tmp.$host; mkdir -p \"$TMPDIR\"\n"
           "sh -c \"$*\" > DIR/daemon.$host 2>&1 < /dev/null &\n");
    script("rank",
           "rank=${OMPI_COMM_WORLD_RANK-$PMI_RANK}\n"
           "echo \"$rank ${OF_DAEMON:-local} ${OF_MPIRUN:-none} $$\" > DIR/rank.$rank\n");
  }

  void script(const std::string& name, const std::string& text) {
    // Open MPI 5's daemon may miss a rank that ends at once.
    const bool stay = name == "rank" && input_.mpi.flavour == MpiFlavour::open_mpi_5;
    test::script(folder_, name,
                 test::with(text, "DIR/", folder_.path().string() + "/") + (stay ? "sleep 1" : ""));
  }

  /// mpirun's exit status, -1 where a signal ended it. After 60 s it is killed.
  int run() {
    const auto command = mpi_command(input_);
    EXPECT_TRUE(command) << (command ? "" : command.error());
    if (!command) return -1;
    SCOPED_TRACE(as_shell_line(*command));
    std::string text = "exec timeout -k 1 60 env OF_MPIRUN=yes TMPDIR=" + folder_.path().string();
    text += ' ' + as_shell_line(*command) + " > " + folder_.file("out") + " 2>&1 < /dev/null";
    const int status = std::system(text.c_str());
    output_ = internal::test::read_file(folder_.file("out"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  /// "rank host variable", of each rank.
  std::vector<std::string> ranks(int count) {
    std::vector<std::string> result;
    for (int rank = 0; rank < count; ++rank) {
      const auto lines = lines_of(folder_.file("rank." + std::to_string(rank)));
      if (lines.empty()) continue;
      result.push_back(lines.front().substr(0, lines.front().rfind(' ')));
    }
    return result;
  }

  TemporaryFolder folder_;
  MpiCommandInput input_;
  std::string output_;
};

TEST_F(Mpirun, PlacesRanksHostByHostAndGivesThemTheirAgentsVariables) {
  input_.hosts = {{"127.0.0.3", 1, false}, {"first", 2, true}, {"127.0.0.2", 3, false}};
  input_.network.local_address = "127.0.0.1";
  EXPECT_EQ(run(), 0) << output_;
  EXPECT_THAT(ranks(6), ElementsAre("0 127.0.0.3 none", "1 local yes", "2 local yes",
                                    "3 127.0.0.2 none", "4 127.0.0.2 none", "5 127.0.0.2 none"));
}

TEST_F(Mpirun, TellsEachRankItsPlace) {
  script("rank", "env > DIR/environment.${OMPI_COMM_WORLD_RANK-$PMI_RANK}\n");
  // Equal numbers: for hosts of one name Open MPI 5 sets the size of the last.
  input_.hosts = {{"first", 2, true}, {"127.0.0.2", 2, false}};
  input_.network.local_address = "127.0.0.1";
  EXPECT_EQ(run(), 0) << output_;
  const auto place = [&](int rank) {
    const auto lines = lines_of(folder_.file("environment." + std::to_string(rank)));
    return rank_of_environment([&](std::string_view name) -> std::optional<std::string> {
      const std::string start = std::string(name) + "=";
      for (const std::string& line : lines) {
        if (line.starts_with(start)) return line.substr(start.size());
      }
      return std::nullopt;
    });
  };
  EXPECT_EQ(place(0), (RankPlace{0, 4, 0, 2}));
  EXPECT_EQ(place(1), (RankPlace{1, 4, 1, 2}));
  EXPECT_EQ(place(2), (RankPlace{2, 4, 0, 2}));
  EXPECT_EQ(place(3), (RankPlace{3, 4, 1, 2}));
}

}  // namespace
}  // namespace hora::launch
