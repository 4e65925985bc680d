/// Checks of errors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <functional>
#include <string>

namespace hora::internal::test {

/// Runs `misuse` and checks that it throws hora::Error of that code, whose text matches. Gives the
/// error, for checks of its rank, tensor and text.
inline Error expect_error(ErrorCode code, const testing::Matcher<std::string>& text,
                          const std::function<void()>& misuse) {
  try {
    misuse();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(std::string(error.what()), text);
    return error;
  }
  ADD_FAILURE() << "expected Error(" << name_of(code) << "), but nothing was thrown";
  return {code, ""};
}

/// Whatever its text.
inline Error expect_error(ErrorCode code, const std::function<void()>& misuse) {
  return expect_error(code, testing::_, misuse);
}

}  // namespace hora::internal::test
