// Processes, files, and the log.
#include "core/base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "core/base/diagnostics.h"
#include "core/base/log.h"
#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

TEST(ProcessIdentity, HasTheHostsNameOfHorarun) {
  ::setenv(kHostVariable, "10.0.0.7", 1);
  EXPECT_EQ(identity_of_process(0).host, "10.0.0.7");
  ::unsetenv(kHostVariable);
}

TEST(ProcessStat, ReadsNamesOfAnyKindAndRefusesOtherTexts) {
  const auto stat = parse_process_stat("12 (a) R b (c)) T 7 12 12 0");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, 12);
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->state, ProcessState::stopped);
  EXPECT_EQ(stat->name, "a) R b (c)");
  for (const char* text : {"", ")", "12", "12 (a", "12 (a)", "12 (a) ", "12 (a) R", "12 (a) R x",
                           "x (a) R 1", ") (", "12 (a) RR 1"}) {
    EXPECT_FALSE(parse_process_stat(text)) << text;
  }
}

bool becomes(pid_t pid, ProcessState wanted) {
  for (int i = 0; i < 2000; ++i) {
    if (process_state(pid) == wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

TEST(ProcessState, OfAProcessThatIsStoppedGoesOnAndEnds) {
  EXPECT_EQ(process_state(::getpid()), ProcessState::running);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  while (child == 0) ::pause();
  using enum ProcessState;
  // Gone before its parent waits for it.
  for (const auto& [signal, state] :
       {std::pair(0, sleeping), {SIGSTOP, stopped}, {SIGCONT, sleeping}, {SIGKILL, gone}}) {
    ::kill(child, signal);
    EXPECT_TRUE(becomes(child, state)) << signal;
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_state(child), gone);
}

TEST(RdmaDevices, ActivePortsAreListedInOrder) {
  const test::TemporaryFolder folder;
  const auto add = [&](const std::string& port, const char* state) {
    fs::create_directories(folder.file(port));
    std::ofstream(folder.file(port + "/state")) << state << '\n';
  };
  add("mlx5_1/ports/1", "4: ACTIVE");
  add("mlx5_0/ports/2", "4: ACTIVE");
  add("mlx5_0/ports/1", "1: DOWN");
  add("mlx5_2/ports/1", "2: INIT");
  fs::create_directories(folder.file("without_ports"));
  EXPECT_THAT(active_rdma_ports(folder.path()), ElementsAre("mlx5_0 port 2", "mlx5_1 port 1"));
}

TEST(NewFile, IsForItsUserAloneWhateverTheMask) {
  const test::TemporaryFolder folder;
  const mode_t mask = ::umask(0);
  const NewFile file(folder.file("f"));
  ::umask(mask);
  ASSERT_EQ(::write(file.descriptor(), "some ", 5), 5);
  std::ofstream(file.descriptor_path(), std::ios::app) << "bytes";
  EXPECT_EQ(test::read_file(folder.file("f")), "some bytes");
  EXPECT_EQ(fs::status(folder.file("f")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(NewFile, TakesThePlaceOfARegularFileAndNothingElse) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("f");
  std::ofstream(folder.file("kept")) << "kept";
  fs::permissions(folder.file("kept"), fs::perms::all);
  fs::create_hard_link(folder.file("kept"), path);
  { const NewFile file(path); }
  EXPECT_EQ(test::read_file(path), "");
  EXPECT_EQ(test::read_file(folder.file("kept")), "kept") << "another name of the old file";
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(NewFile, LinksAreNotFollowedAndWhatIsNoFileIsRefusedAtOnce) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.file("kept")) << "kept";
  fs::create_symlink(folder.file("kept"), folder.file("link"));
  fs::create_symlink(folder.file("nothing"), folder.file("dangling"));
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  const std::pair<std::string, std::string> cases[] = {
      {folder.file("link"), "a link, which is not followed,"},
      {folder.file("dangling"), "a link"},
      {folder.file("fifo"), "a FIFO has this name already"},
      {folder.path().string(), "a folder has this name"},
      {"/dev/null", "a device has this name"},
      {folder.file("no/such/folder"), "No such file or directory"},
      {std::string("a\0b", 3), "a\\x00b"},
      {std::string("a\0b", 3), "zero byte"},
      {"", "No such file"}};
  for (const auto& each : cases) {
    SCOPED_TRACE(each.first);
    test::expect_error(ErrorCode::invalid_argument,
                       AllOf(HasSubstr("cannot be made"), HasSubstr(each.second)),
                       [&] { const NewFile file(each.first); });
  }
  EXPECT_EQ(test::read_file(folder.file("kept")), "kept");
  EXPECT_FALSE(fs::exists(folder.file("nothing")));
  EXPECT_TRUE(fs::is_fifo(folder.file("fifo")));
  EXPECT_TRUE(fs::exists("/dev/null"));
}

std::string logged(const std::string& message) {
  testing::internal::CaptureStderr();
  log().warn("{}", message);
  log().flush();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, AMessageIsOneLineWhateverItHoldsAndIsCut) {
  const std::string line = logged("tensor \"x\n[00:00:00.000] hora critical: forged\x1b[2J\0y\""s);
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_THAT(line, AllOf(HasSubstr("hora warning: tensor \"x\\n[00:00:00.000] hora critical: "),
                          EndsWith("forged\\x1b[2J\\x00y\"\n")));
  EXPECT_LT(logged(std::string(1 << 20, 'x')).size(), std::size_t{20} << 10);
}

[[noreturn]] void throw_nowhere(const std::function<void()>& thrower) noexcept {
  thrower();
  std::abort();
}

TEST(TerminateReportDeathTest, NamesRankAndError) {
  const auto end = [](const std::function<void()>& thrower) {
    std::set_terminate([] {
      std::cerr << "the handler before\n";
      std::_Exit(3);
    });
    const TerminateReport report(5);
    throw_nowhere(thrower);
  };
  EXPECT_EXIT(end([] { throw std::runtime_error("lost\nforged"); }), testing::ExitedWithCode(3),
              "rank 5 .host .*, pid [0-9]+. ends the job: uncaught exception of type "
              "std::runtime_error: lost.nforged\nthe handler before");
  EXPECT_EXIT(end([] { throw Error(ErrorCode::mismatch, "odd"); }), testing::ExitedWithCode(3),
              "uncaught exception of type hora::Error: odd");
  EXPECT_EXIT(end([] { throw 7; }), testing::ExitedWithCode(3), "uncaught exception of type int");
  EXPECT_EXIT(end([] { std::terminate(); }), testing::ExitedWithCode(3), "without an exception");
  // The library's own handler repeats nothing.
  const auto end_by_library = [] {
    const TerminateReport report(5);
    throw_nowhere([] { throw std::runtime_error("lost"); });
  };
  EXPECT_EXIT(end_by_library(), testing::KilledBySignal(SIGABRT), "std::runtime_error: lost\n$");
}

TEST(TerminateReportDeathTest, IsLeftToTheReportWhereThereIsOne) {
  const auto end = [](bool is_known) {
    std::set_terminate([] { std::_Exit(3); });
    const TerminateReport report(5, [=](const std::string& why) {
      log_end(5, why, is_known);
      std::cerr << "sent: " << why << '\n';
    });
    throw_nowhere([] { throw Error(ErrorCode::mismatch, "odd"); });
  };
  EXPECT_EXIT(end(true), testing::ExitedWithCode(3),
              "^sent: uncaught exception of type hora::Error: odd\n$");
  EXPECT_EXIT(end(false), testing::ExitedWithCode(3), "ends the job: .*odd\nsent: ");
}

TEST(TerminateReport, RestoresTheHandlerThatWasThereBefore) {
  const std::terminate_handler before = std::get_terminate();
  std::optional<TerminateReport> report(std::in_place, 0);
  EXPECT_NE(std::get_terminate(), before);
  report.reset();
  EXPECT_EQ(std::get_terminate(), before);
}

}  // namespace
}  // namespace hora::internal
