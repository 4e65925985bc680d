/// Checks of errors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <functional>
#include <string>

namespace hora::test {

/// Runs `misuse` and checks that it throws hora::Error of that code, whose text matches.
inline void expect_error(ErrorCode code, const testing::Matcher<std::string>& text,
                         const std::function<void()>& misuse) {
  try {
    misuse();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(std::string(error.what()), text);
  }
}

}  // namespace hora::test
