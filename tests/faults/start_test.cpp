// A start that cannot work says why before it starts.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/faults/fault_test.h"

namespace hora::launch::test {
namespace {

using testing::HasSubstr;

class Start : public FaultTest {};

TEST_F(Start, AMissingProgramIsNamed) {
  start({.arguments = {"-np", "2", "./no_such_program"}});
  expect_cause(69, {"no_such_program", "No such file or directory"}, Seconds(10));
}

TEST_F(Start, AMissingProgramIsNamedWithTheHost) {
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", "./no_such_program"}});
  ASSERT_EQ(job_->wait(Seconds(10)), 69) << transcript(*job_);
  EXPECT_THAT(job_->error(), HasSubstr("host 127.0.0.2: the program "));
}

TEST_F(Start, AProgramThatOnlyTheFirstHostHasIsNamedWithTheOther) {
  if (!hosts_can_have_names()) GTEST_SKIP() << kNoHosts;
  internal::test::TemporaryFolder folder;
  const std::string program = folder.file("train");
  std::filesystem::create_symlink(FAULT_RANK, program);
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", program, "none", "-", "-"},
         .hidden = folder.path()});
  expect_cause(69, {"host 127.0.0.2: the program \"" + program + "\" cannot be run: No such file"},
               Seconds(10));
  EXPECT_THAT(job_->error(), testing::Not(HasSubstr("host 127.0.0.1"))) << transcript(*job_);
}

TEST_F(Start, AnInterfaceThatAHostLacksIsNamedWithinTwoSeconds) {
  start({.arguments = {"-H", "127.0.0.1:1,127.0.0.2:1", "--network-interfaces", "none7", FAULT_RANK,
                       "none", "-", "-"}});
  expect_cause(69, {"--network-interfaces none7: host 127.0.0.1 has no such interface"},
               Seconds(2));
}

TEST_F(Start, AFileThatIsNoProgramIsNamed) {
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("text");
  std::ofstream(path) << "\x7f"
                      << "ELF of another machine";
  ::chmod(path.c_str(), 0600);
  start({.arguments = {"-np", "1", path}});
  expect_cause(69, {path, "it is not executable for this user (chmod +x)"}, Seconds(10));
}

TEST_F(Start, AProgramOfTheWrongTypeIsNamed) {
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("other");
  std::ofstream(path) << "\x7f"
                      << "ELF of another machine";
  ::chmod(path.c_str(), 0700);
  start({.arguments = {"-np", "1", path}});
  expect_cause(69, {path, "cannot be run: "}, Seconds(10));
}

TEST_F(Start, AnUnreachableHostIsNamedWithSshsWords) {
  launch({"-H", "127.0.0.1:1,unreachable:1"}, {"none", "-", "-"});
  expect_cause(69, {"host unreachable: ", "No route to host"}, Seconds(10));
}

TEST_F(Start, ABadHostFileIsNamedWithTheLine) {
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("hosts");
  std::ofstream(path) << "a slots=2\nb slots=many\n";
  launch({"--hostfile", path}, {"none", "-", "-"});
  expect_cause(2, {path, "2"}, Seconds(5));
}

TEST_F(Start, AHostFileThatIsNotThereIsNamed) {
  launch({"--hostfile", "/no/such/file"}, {"none", "-", "-"});
  expect_cause(2, {"/no/such/file"}, Seconds(5));
}

TEST_F(Start, AnUnknownFlagIsNamed) {
  launch({"--no-such-flag"}, {"none", "-", "-"});
  expect_cause(2, {"no-such-flag"}, Seconds(5));
}

TEST_F(Start, WhatLacksWordsEndsAtTheTimeLimit) {
  // "sleep" as ssh: it never answers.
  internal::test::TemporaryFolder folder;
  const std::string path = folder.file("ssh");
  std::ofstream(path) << "#!/bin/sh\nexec sleep 60\n";
  ::chmod(path.c_str(), 0700);
  launch({"-H", "127.0.0.1:1,127.0.0.2:1", "--start-timeout", "2"}, {"none", "-", "-"},
         {"HORARUN_SSH=" + path});
  expect_cause(69, {"127.0.0.2", "no answer within 2 s", "--start-timeout"}, Seconds(15));
}

}  // namespace
}  // namespace hora::launch::test
