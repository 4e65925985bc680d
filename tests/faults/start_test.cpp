// A start that cannot work says why before it starts.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

/// From horarun's start to the end of its checks of two hosts.
constexpr Seconds kChecks{2};

class Start : public FaultTest {};

TEST_F(Start, AMissingProgramIsNamedWithTheHost) {
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", "./no_such_program"}});
  ASSERT_EQ(job_->wait(kChecks), 69) << transcript(*job_);
  EXPECT_THAT(job_->error(), HasSubstr("host 127.0.0.2: the program \""));
}

TEST_F(Start, AProgramThatOnlyTheFirstHostHasIsNamedWithTheOther) {
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  internal::test::TemporaryFolder folder;
  const std::string program = folder.file("train");
  std::filesystem::create_symlink(FAULT_RANK, program);
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", program, "none", "-", "-"},
         .hidden = folder.path()});
  expect_cause(69, {"host 127.0.0.2: the program \"" + program + "\" cannot be run: No such file"},
               kChecks);
  EXPECT_THAT(job_->error(), testing::Not(HasSubstr("host 127.0.0.1"))) << transcript(*job_);
}

TEST_F(Start, AnInterfaceThatAHostLacksIsNamedWithinTwoSeconds) {
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", "--network-interfaces", "none7", FAULT_RANK,
                       "none", "-", "-"}});
  expect_cause(69, {"--network-interfaces none7: host 127.0.0.1 has no such interface"}, kChecks);
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
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(listens_to_networks(job_->rank(rank)), testing::IsEmpty()) << rank;
  }
  ::kill(job_->launcher(), SIGINT);
  job_->wait();
}

TEST_F(Start, AProgramOfTheWrongTypeIsNamed) {
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("other");
  std::ofstream(path) << "\x7f"
                      << "ELF of another machine";
  ::chmod(path.c_str(), 0700);
  start({.arguments = {"-np", "1", path}});
  expect_cause(127, {"could not be started: " + path + ": Exec format error"}, Seconds(10));
}

TEST_F(Start, AnUnreachableHostIsNamedWithSshsWordsWhatWasTriedAndWhatToDo) {
  launch({"-H", "127.0.0.1:1,unreachable:1"}, {"none", "-", "-"});
  const std::string horarun = std::filesystem::canonical(HORARUN);
  expect_cause(
      69,
      {"host unreachable: no agent could be started there (", "exit status 255", "No route to host",
       "; its ranks: 1; tried: ",
       "/ssh -o BatchMode=yes -o ConnectTimeout=30 unreachable -- " + horarun + " --agent;",
       "ssh must log in there without a question", "--ssh-port"},
      kChecks);
}

TEST_F(Start, AMachineWithoutSshIsSaidAtOnce) {
  launch({"-H", "127.0.0.1:1,unreachable:1"}, {"none", "-", "-"}, {"HORARUN_SSH=/nonexistent"});
  expect_cause(69,
               {"host unreachable: no agent could be started there (/nonexistent: No such file",
                "install /nonexistent on this host"},
               kChecks);
}

TEST_F(Start, AHostWithoutHorarunIsNamedWithWhatWasTriedAndWhatToDo) {
  if (!hosts_can_hide_folders()) GTEST_SKIP() << "needs root, and no plain chroot";
  internal::test::TemporaryFolder folder;
  const std::string horarun = std::filesystem::canonical(folder.path()) / "horarun";
  std::filesystem::copy_file(HORARUN, horarun);
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", FAULT_RANK, "none", "-", "-"},
         .hidden = folder.path(),
         .launcher = horarun});
  expect_cause(69,
               {"host 127.0.0.2: no agent could be started there (", "exit status 127", "not found",
                "tried: ", "127.0.0.2 -- " + horarun + " --agent; horarun must be there",
                "install hora on that host"},
               kChecks);
}

TEST_F(Start, WhatTheEnvironmentLacksIsNamed) {
  launch({"-np", "2"}, {"none", "-", "-"}, {"TMPDIR=/proc/none"});
  expect_cause(69, {"no folder can be made in /proc/none: ", "; set TMPDIR to one that"}, kChecks);
  launch({"-np", "2"}, {"none", "-", "-"}, {"PATH="});
  expect_cause(69, {"host localhost: PATH is not set"}, kChecks);
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

TEST_F(Start, WhatLacksWordsEndsAtTheTimeLimit) {
  // "sleep" as ssh: it never answers.
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("ssh");
  std::ofstream(path) << "#!/bin/sh\nexec sleep 60\n";
  ::chmod(path.c_str(), 0700);
  launch({"-H", "127.0.0.1:1,127.0.0.2:1", "--start-timeout", "2"}, {"none", "-", "-"},
         {"HORARUN_SSH=" + path});
  expect_cause(69,
               {"no answer within 2 s from 127.0.0.2; tried: " + path + " ", " --agent; ",
                "--start-timeout"},
               Seconds(15));
}

}  // namespace
}  // namespace hora::launch::test
