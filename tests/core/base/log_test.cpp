#include "core/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <stdexcept>

#include "core/base/diagnostics.h"

namespace hora::internal {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

std::string logged(const std::string& message) {
  testing::internal::CaptureStderr();
  log().warn("{}", message);
  log().flush();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, AMessageIsOneLineWhateverItHolds) {
  const std::string line = logged("tensor \"x\n[00:00:00.000] hora critical: forged\x1b[2J\0y\""s);
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  EXPECT_THAT(line, AllOf(HasSubstr("hora warning: tensor \"x\\n[00:00:00.000] hora critical: "),
                          EndsWith("forged\\x1b[2J\\x00y\"\n")));
}

TEST(Log, AMessageIsCut) {
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
}

TEST(TerminateReportDeathTest, DoesNotRepeatWhatIsLoggedAndNotifiesPeers) {
  const auto end = [](bool is_logged) {
    std::set_terminate([] { std::_Exit(3); });
    const TerminateReport report(
        5, {.is_logged = [=](const std::string& why) { return is_logged && why.ends_with("odd"); },
            .notify_peers = [](const std::string& why) { std::cerr << "sent: " << why << '\n'; }});
    throw_nowhere([] { throw Error(ErrorCode::mismatch, "odd"); });
  };
  EXPECT_EXIT(end(true), testing::ExitedWithCode(3),
              "^sent: uncaught exception of type hora::Error: odd\n$");
  EXPECT_EXIT(end(false), testing::ExitedWithCode(3), "ends the job: .*odd\nsent: ");
}

TEST(TerminateReportDeathTest, TheLibrarysHandlerRepeatsNothing) {
  const auto end = [] {
    const TerminateReport report(5);
    throw_nowhere([] { throw std::runtime_error("lost"); });
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGABRT), "std::runtime_error: lost\n$");
}

TEST(TerminateReport, RestoresTheHandlerThatWasThereBefore) {
  const std::terminate_handler before = std::get_terminate();
  for (int round = 0; round < 2; ++round) {
    {
      const TerminateReport report(0);
      EXPECT_NE(std::get_terminate(), before);
    }
    EXPECT_EQ(std::get_terminate(), before);
  }
}

}  // namespace
}  // namespace hora::internal
