#include "examples/vision/train/mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace vision {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Mode, OneProcessTrainsInEveryMode) {
  EXPECT_NO_THROW(check_mode(Mode::distributed, 1));
  EXPECT_NO_THROW(check_mode(Mode::data_parallel, 1));
  EXPECT_NO_THROW(check_mode(Mode::single, 1));
}

TEST(Mode, OfOneProcessRefusesMoreRanks) {
  EXPECT_NO_THROW(check_mode(Mode::distributed, 2));
  EXPECT_THAT([] { check_mode(Mode::single, 2); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("--mode single trains in one process, and this job has 2 ranks"),
                        HasSubstr("without horarun"), HasSubstr("--mode distributed"))));
  EXPECT_THAT([] { check_mode(Mode::data_parallel, 3); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("--mode data-parallel trains in one process, with all its GPUs"),
                        HasSubstr("3 ranks"))));
}

}  // namespace
}  // namespace vision
