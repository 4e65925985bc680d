// A start that cannot work says why before it starts.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tests/faults/fault_test.h"
#include "tests/support/golden.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

/// From horarun's start to the end of its checks of two hosts.
constexpr Seconds kChecks{2};

class Start : public FaultTest {
 protected:
  /// A program of this text.
  std::string program(const std::string& name, const std::string& text) const {
    const std::string path = folder_.file(name);
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0700);
    return path;
  }
  internal::test::TemporaryFolder folder_;
};

/// Lines of start.txt: seconds that the start may take, variables, and horarun's arguments.
TEST_F(Start, ThatCannotWorkSaysWhyAndWhatToDo) {
  program("other",
          "\x7F"
          "ELF of another machine");
  program("silent", "#!/bin/sh\nexec sleep 60\n");
  const std::string folder = folder_.path();
  const std::string horarun = std::filesystem::canonical(HORARUN);
  const auto replaced = [](std::string text, const std::string& what, const std::string& by) {
    return std::regex_replace(text, std::regex(what), by);
  };
  const auto outcome_of = [&](const std::string& line) {
    std::istringstream words(replaced(line, "FOLDER", folder));
    double limit = 0;
    words >> limit;
    JobOptions options;
    for (std::string word; words >> word;) {
      const bool is_variable = options.arguments.empty() && word.find('=') != word.npos;
      (is_variable ? options.environment : options.arguments).push_back(word);
    }
    const auto status = start(options).wait(Seconds(limit));
    std::string text = "exit status " + (status ? std::to_string(*status) : "none") + "\n" +
                       job_->output() + job_->complaints();
    text = replaced(replaced(text, folder, "FOLDER"), job_->folder(), "JOB");
    return replaced(replaced(text, horarun, "HORARUN"), "interfaces are [^;]*",
                    "interfaces are ...");
  };
  EXPECT_EQ(internal::test::expect_golden_outcomes("faults/start.txt", outcome_of), 8);
}

TEST_F(Start, AProgramThatOnlyTheFirstHostHasIsNamedWithTheOther) {
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  const std::string train = folder_.file("train");
  std::filesystem::create_symlink(FAULT_RANK, train);
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", train, "none", "-", "-"},
         .hidden = folder_.path()});
  expect_cause(69, {"host 127.0.0.2: the program \"" + train + "\" cannot be run: No such file"},
               kChecks);
  EXPECT_THAT(job_->error(), testing::Not(HasSubstr("host 127.0.0.1"))) << transcript(*job_);
}

/// Where the process listens, as /proc/net has it, but for loopback ("0100007F:", of IPv6 "...1:").
std::vector<std::string> listens_to_networks(pid_t process) {
  std::string sockets;
  std::error_code gone;
  const std::string folder = "/proc/" + std::to_string(process);
  for (const auto& each : std::filesystem::directory_iterator(folder + "/fd", gone)) {
    sockets += std::filesystem::read_symlink(each, gone).string() + " ";
  }
  std::vector<std::string> result;
  for (const char* const family : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream table(folder + family);
    for (std::string line; std::getline(table, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      const bool is_loopback = local.starts_with("0100007F:") || local.find("01000000:") == 24;
      if (state == "0A" && !is_loopback && sockets.find("[" + inode + "]") != sockets.npos) {
        result.push_back(local);
      }
    }
  }
  return result;
}

TEST_F(Start, RanksOfOneHostDoNotListenToNetworks) {
  running_on(one_node());
  // MPICH's mpirun leaves its socket to them.
  std::vector<std::string> inherited;
  if (std::string_view(HORA_TEST_MPI).starts_with("MPICH ")) {
    inherited = listens_to_networks(job_->find(JobProcess::Kind::mpirun));
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(listens_to_networks(job_->rank(rank)), testing::IsSubsetOf(inherited)) << rank;
  }
  ::kill(job_->launcher(), SIGINT);
  job_->wait();
}

TEST_F(Start, AHostWithoutHorarunIsNamedWithWhatWasTriedAndWhatToDo) {
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  const std::string horarun = std::filesystem::canonical(folder_.path()) / "horarun";
  std::filesystem::copy_file(HORARUN, horarun);
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", FAULT_RANK, "none", "-", "-"},
         .hidden = folder_.path(),
         .launcher = horarun});
  expect_cause(69,
               {"host 127.0.0.2: no agent could be started there (", "exit status 127", "not found",
                "tried: ", "127.0.0.2 -- " + horarun + " --agent; horarun must be there",
                "install hora on that host"},
               kChecks);
}

TEST_F(Start, AFullTemporaryFolderIsNamed) {
  if (!hosts_can_hide_folders()) GTEST_SKIP() << kNoHosts;
  start({.arguments = {"--mount", "sh", "-c",
                       "mount -t tmpfs -o size=1m tmpfs \"$TMPDIR\" && exec \"$0\" \"$@\"", HORARUN,
                       "-np", "2", FAULT_RANK, "none", "-", "-"},
         .launcher = "unshare"});
  expect_cause(69, {"/tmp has ", " MiB left, MPI needs 16; ", "set TMPDIR to another"}, kChecks);
}

TEST_F(Start, RootIsRefusedUnlessAFlagAllowsIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const std::vector<std::string> variable{"OMPI_ALLOW_RUN_AS_ROOT=0"};
  launch({"-np", "2"}, {"none", "-", "-", "1"}, variable);
  expect_cause(2, {"it is run as root", "--allow-run-as-root"}, kChecks);
  EXPECT_EQ(job_->output(), "");
  launch({"-np", "2", "--allow-run-as-root"}, {"none", "-", "-", "1"}, variable);
  EXPECT_EQ(job_->wait(), 0) << transcript(*job_);
  EXPECT_TRUE(job_->wait_for(": ready", 2, Seconds(0))) << transcript(*job_);
}

}  // namespace
}  // namespace hora::launch::test
