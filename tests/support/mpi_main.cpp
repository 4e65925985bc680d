/// main() of tests that run under mpirun: every rank runs every test, with one seed.
#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <thread>

#include "tests/support/seed.h"
#include "tests/support/summary.h"

namespace {

/// Prints this rank's failures with the rank in front; for ranks whose progress is not shown.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  // GoogleTest holds a lock here that current_test_info() takes too.
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.passed()) return;
    const char* file = result.file_name() == nullptr ? "unknown file" : result.file_name();
    // One call, so that lines of several ranks do not mix.
    const std::string text = "[rank " + std::to_string(rank_) + "] " + test_ + ": " + file + ":" +
                             std::to_string(result.line_number()) + ": " +
                             (result.skipped() ? "Skipped" : "Failure") + "\n" + result.message() +
                             "\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

 private:
  int rank_;
  std::string test_ = "outside of a test";
};

/// At the end of each test all ranks meet: a failure on one is a failure on all. Where a rank left
/// its test and another is still inside after `patience` (it waits in a collective that the failed
/// rank will never call), the job is aborted with a message that says so.
/// Owns its communicator, so the tests' own traffic is not disturbed.
class RankAgreement : public testing::EmptyTestEventListener {
 public:
  RankAgreement(int rank, std::chrono::seconds patience) : rank_(rank), patience_(patience) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  }
  ~RankAgreement() override { MPI_Comm_free(&comm_); }
  RankAgreement(const RankAgreement&) = delete;
  RankAgreement& operator=(const RankAgreement&) = delete;
  void OnTestEnd(const testing::TestInfo& test) override {
    const int failed_here = test.result()->Failed() ? 1 : 0;
    int failed_anywhere = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&failed_here, &failed_anywhere, 1, MPI_INT, MPI_MAX, comm_, &request);
    const auto deadline = std::chrono::steady_clock::now() + patience_;
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    while (done == 0) {
      if (failed_here != 0 && std::chrono::steady_clock::now() > deadline) {
        std::fprintf(stderr,
                     "[rank %d] %s.%s failed here, and %lld s later another rank is still inside "
                     "the test: aborting.\n",
                     rank_, test.test_suite_name(), test.name(),
                     static_cast<long long>(patience_.count()));
        std::fflush(nullptr);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    if (failed_anywhere != 0 && failed_here == 0) {
      ADD_FAILURE() << "The test failed on another rank.";
    }
  }

 private:
  int rank_;
  std::chrono::seconds patience_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

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
    listeners.Append(new FailurePrinter(rank));
  }
  // Appended last: at the end of a test it runs first, so that the printers know its verdict.
  auto* agreement = new RankAgreement(rank, std::chrono::seconds(20));
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
