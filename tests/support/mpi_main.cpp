/// main() of tests that run under mpirun: every rank runs every test, with one seed.
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "tests/support/mpi_listener.h"
#include "tests/support/seed.h"
#include "tests/support/summary.h"

namespace {

// Collective. Throws on every rank where rank 0's TEST_SEED is no number.
void agree_on_seed(int rank) {
  std::uint64_t message[2] = {0, 0};  // seed, and whether rank 0 has one
  if (rank == 0) {
    try {
      message[0] = hora::internal::test::choose_seed();
      message[1] = 1;
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
    }
  }
  MPI_Bcast(message, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  if (message[1] == 0) {
    MPI_Finalize();
    std::exit(1);
  }
  hora::internal::test::set_seed(message[0]);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  agree_on_seed(rank);
  // Shuffled alike on every rank; GoogleTest takes seeds of 1 to 99999.
  GTEST_FLAG_SET(random_seed, static_cast<std::int32_t>(hora::internal::test::seed() % 99999 + 1));

  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank == 0) {
    std::cout << size << " ranks. Repeat with TEST_SEED=" << hora::internal::test::seed()
              << std::endl;
  } else {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new hora::internal::test::FailurePrinter(rank));
  }
  // Appended last: at the end of a test it runs first, so that the printers know its verdict.
  auto* agreement = new hora::internal::test::RankAgreement(rank, std::chrono::seconds(20));
  listeners.Append(agreement);

  const int failed = RUN_ALL_TESTS();
  const int here =
      failed != 0 ? failed : hora::internal::test::exit_code(*testing::UnitTest::GetInstance());
  delete listeners.Release(agreement);
  // A failure (1) outweighs a skip (77): ranks that skip and ranks that pass disagree, which is
  // one.
  int lowest = 0;
  int highest = 0;
  MPI_Allreduce(&here, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&here, &highest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return lowest == highest ? here : 1;
}
