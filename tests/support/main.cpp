/// main() of tests that need no MPI: GoogleTest's, with the seed printed.
#include <gtest/gtest.h>

#include <exception>
#include <iostream>

#include "tests/support/seed.h"
#include "tests/support/summary.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  try {
    hora::internal::test::set_seed(hora::internal::test::choose_seed());
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  std::cout << "Repeat with TEST_SEED=" << hora::internal::test::seed() << std::endl;
  const int failed = RUN_ALL_TESTS();
  return failed != 0 ? failed : hora::internal::test::exit_code(*testing::UnitTest::GetInstance());
}
