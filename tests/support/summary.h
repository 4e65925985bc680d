/// A test program's exit code.
#pragma once

#include <gtest/gtest.h>

namespace hora::internal::test {

/// ctest's SKIP_RETURN_CODE.
inline constexpr int exit_skipped = 77;

/// 1 where a test failed or none ran, 77 where every test that ran was skipped, else 0. A program
/// whose filter matches nothing must not look like a success.
int exit_code(const testing::UnitTest& unit_test);

}  // namespace hora::internal::test
