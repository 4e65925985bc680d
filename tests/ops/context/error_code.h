/// Which error a call throws.
#pragma once

#include <gtest/gtest.h>
#include <hora/error.h>

#include <functional>
#include <optional>

namespace hora {

/// Nothing, and a failure of the test, where it throws none of hora's.
inline std::optional<ErrorCode> code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return std::nullopt;
}

}  // namespace hora
