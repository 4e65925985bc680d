#include "tests/support/summary.h"

#include <iostream>

namespace hora::internal::test {

int exit_code(const testing::UnitTest& unit_test) {
  if (!unit_test.Passed()) return 1;
  if (unit_test.test_to_run_count() == 0) {
    std::cerr << "No test ran: this program has none, or the filter matches none.\n";
    return 1;
  }
  return unit_test.successful_test_count() == 0 ? exit_skipped : 0;
}

}  // namespace hora::internal::test
