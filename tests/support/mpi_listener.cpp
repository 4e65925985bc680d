#include "tests/support/mpi_listener.h"

#include <cstdio>
#include <thread>

namespace hora::internal::test {

void FailurePrinter::OnTestStart(const testing::TestInfo& test) {
  test_ = std::string(test.test_suite_name()) + "." + test.name();
}

// GoogleTest holds a lock here that current_test_info() takes too.
void FailurePrinter::OnTestPartResult(const testing::TestPartResult& result) {
  if (result.passed()) {
    return;
  }
  const char* file = result.file_name() == nullptr ? "unknown file" : result.file_name();
  // One call, so that lines of several ranks do not mix.
  const std::string text = "[rank " + std::to_string(rank_) + "] " + test_ + ": " + file + ":" +
                           std::to_string(result.line_number()) + ": " +
                           (result.skipped() ? "Skipped" : "Failure") + "\n" + result.message() +
                           "\n";
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

RankAgreement::RankAgreement(int rank, std::chrono::seconds patience)
    : rank_(rank), patience_(patience) {
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
}

RankAgreement::~RankAgreement() {
  MPI_Comm_free(&comm_);
}

void RankAgreement::OnTestEnd(const testing::TestInfo& test) {
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
                   "[rank %d] %s.%s failed here, and %lld s later another rank is still inside the "
                   "test: aborting.\n",
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

}  // namespace hora::internal::test
