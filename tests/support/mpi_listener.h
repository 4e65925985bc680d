/// Listeners that make the ranks of an MPI test agree.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <chrono>
#include <string>

namespace hora::internal::test {

/// Prints this rank's failures with the rank in front; for ranks whose progress is not shown.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestPartResult(const testing::TestPartResult& result) override;

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
  RankAgreement(int rank, std::chrono::seconds patience);
  ~RankAgreement() override;
  RankAgreement(const RankAgreement&) = delete;
  RankAgreement& operator=(const RankAgreement&) = delete;
  void OnTestEnd(const testing::TestInfo& test) override;

 private:
  int rank_;
  std::chrono::seconds patience_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace hora::internal::test
