/// A test program's exit code.
#pragma once

#include <gtest/gtest.h>

#include <iostream>

namespace hora::internal::test {

/// 1 where a test failed or none ran, 77 (ctest's SKIP_RETURN_CODE) where every test that ran was
/// skipped, else 0. A program whose filter matches nothing must not look like a success.
inline int exit_code(const testing::UnitTest& unit_test) {
  if (!unit_test.Passed()) return 1;
  if (unit_test.test_to_run_count() == 0) {
    std::cerr << "No test ran: this program has none, or the filter matches none.\n";
    return 1;
  }
  return unit_test.successful_test_count() == 0 ? 77 : 0;
}

}  // namespace hora::internal::test
