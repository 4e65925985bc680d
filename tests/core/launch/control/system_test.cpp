#include "core/launch/control/system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::string read_all(const UniqueFd& descriptor) {
  std::string text;
  char bytes[256];
  ssize_t count = 0;
  while ((count = ::read(descriptor.get(), bytes, sizeof bytes)) > 0) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

/// Returns what a program prints, and its status.
std::pair<std::string, int> output_of(ChildOptions options) {
  Pipe pipe = make_pipe();
  options.output = pipe.write.get();
  const auto child = start_child(options);
  EXPECT_TRUE(child) << child.error();
  if (!child) return {};
  pipe.write.reset();
  const std::string text = read_all(pipe.read);
  int status = 0;
  EXPECT_EQ(::waitpid(*child, &status, 0), *child);
  return {text, status};
}

TEST(StartChild, GivesArgumentsFolderAndEnvironment) {
  ASSERT_EQ(::setenv("HORARUN_TEST", "before", 1), 0);
  const auto [text, status] = output_of(
      {.arguments = {"sh", "-c", "pwd; env | grep ^HORARUN_TEST=; echo $1; exit 3", "sh", "a b"},
       .environment = {"HORARUN_TEST=of the test"},
       .folder = "/"});
  ::unsetenv("HORARUN_TEST");
  EXPECT_EQ(text, "/\nHORARUN_TEST=of the test\na b\n");
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(StartChild, WhatCannotBeStartedIsNamed) {
  for (const auto& [options, error] :
       {std::pair(ChildOptions{.arguments = {"/there/is/none"}},
                  "/there/is/none: No such file or directory"),
        std::pair(ChildOptions{.arguments = {"true"}, .folder = "/there/is/none"},
                  "the folder /there/is/none: No such file or directory"),
        std::pair(ChildOptions{.arguments = {"/etc/passwd"}}, "/etc/passwd: Permission denied")}) {
    const auto child = start_child(options);
    ASSERT_FALSE(child);
    EXPECT_EQ(child.error(), error);
  }
}

TEST(StartChild, StandardDescriptorsMayBeExchanged) {
  Pipe input = make_pipe();
  ASSERT_EQ(::write(input.write.get(), "text", 4), 4);
  input.write.reset();
  Pipe output = make_pipe();
  const auto child =
      start_child({.arguments = {"cat"}, .input = input.read.get(), .output = output.write.get()});
  ASSERT_TRUE(child);
  output.write.reset();
  EXPECT_EQ(read_all(output.read), "text");
  ::waitpid(*child, nullptr, 0);
}

TEST(StartChild, SignalsAreAsByDefault) {
  ::signal(SIGUSR1, SIG_IGN);
  const auto [text, status] = output_of({.arguments = {"sh", "-c", "kill -USR1 $$; echo alive"}});
  ::signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(text, "");
  EXPECT_EQ(WTERMSIG(status), SIGUSR1);
}

tl::expected<CapturedOutput, std::string> shell(const std::string& text,
                                                std::chrono::milliseconds limit = 20s) {
  return captured_output({"/bin/sh", "-c", text}, limit);
}

TEST(CapturedOutput, IsBothStreamsAndTheStatus) {
  const auto output = shell("echo a; echo b >&2; exit 3");
  ASSERT_TRUE(output) << output.error();
  EXPECT_EQ(output->text, "a\nb\n");
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(shell("kill -9 $$")->status, 137);
  EXPECT_EQ(shell("cat")->text, "");
  EXPECT_EQ(shell("head -c 1000000 /dev/zero")->text.size(), kMostCaptured);
  EXPECT_EQ(captured_output({"/no/such/program"}, 1s).error(),
            "/no/such/program: No such file or directory");
}

TEST(CapturedOutput, EndsAProgramThatTakesTooLongWithItsChildren) {
  const auto begin = std::chrono::steady_clock::now();
  const auto output = shell("sleep 60 & sleep 60", 100ms);
  ASSERT_FALSE(output);
  EXPECT_THAT(output.error(), HasSubstr("it has not ended after 100 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(EventLoop, AStopBeforeItRunsHoldsOnce) {
  EventLoop loop;
  int turns = 0;
  loop.each(std::chrono::milliseconds(1), [&] {
    ++turns;
    loop.stop();
  });
  loop.stop();
  loop.run();
  EXPECT_EQ(turns, 0);
  loop.run();
  EXPECT_EQ(turns, 1);
}

}  // namespace
}  // namespace hora::launch
