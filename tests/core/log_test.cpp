#include "core/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace hora::internal
