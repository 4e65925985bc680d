#include "examples/vision/train/precision_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace vision {
namespace {

TEST(LossScaleOption, IsDynamicOrANumber) {
  EXPECT_FALSE(parse_loss_scale("dynamic").fixed);
  EXPECT_EQ(parse_loss_scale("128").fixed, 128.0);
  EXPECT_EQ(parse_loss_scale("0.5").fixed, 0.5);
  EXPECT_EQ(parse_loss_scale("1e4").fixed, 1e4);
}

TEST(LossScaleOption, AnythingElseIsRefusedByName) {
  for (const char* text : {"", "Dynamic", "0", "-1", "nan", "inf", "1e39", "128x", " 128"}) {
    EXPECT_THAT([&] { parse_loss_scale(text); },
                testing::ThrowsMessage<std::invalid_argument>(testing::AllOf(
                    testing::HasSubstr("'" + std::string(text) + "' is not a loss scale"),
                    testing::HasSubstr("expected dynamic, or a number above 0"))));
  }
}

}  // namespace
}  // namespace vision
