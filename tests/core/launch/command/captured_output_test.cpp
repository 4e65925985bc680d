#include "core/launch/command/captured_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

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
}

TEST(CapturedOutput, IsBounded) {
  const auto output = shell("head -c 1000000 /dev/zero");
  ASSERT_TRUE(output) << output.error();
  EXPECT_EQ(output->text.size(), kMostCaptured);
  EXPECT_EQ(output->status, 0);
}

TEST(CapturedOutput, EndsAProgramThatTakesTooLongWithItsChildren) {
  const auto begin = std::chrono::steady_clock::now();
  const auto output = shell("sleep 60 & sleep 60", 100ms);
  ASSERT_FALSE(output);
  EXPECT_THAT(output.error(), HasSubstr("it has not ended after 100 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(CapturedOutput, SaysWhyAProgramDoesNotStart) {
  const auto output = captured_output({"/no/such/program"}, 1s);
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error(), "\"/no/such/program\" cannot be run: No such file or directory");
}

}  // namespace
}  // namespace hora::launch
