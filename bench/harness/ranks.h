/// Messages between the ranks of a benchmark, apart from what they measure.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

namespace bench {

/// Owner of a communicator of the harness. MPI must be initialised, with MPI_THREAD_MULTIPLE where
/// hora's engine runs beside it. Errors of MPI end the job. Every function is collective.
/// Thread rule: one thread.
class Ranks {
 public:
  /// Throws std::runtime_error where MPI does not offer MPI_THREAD_MULTIPLE.
  Ranks();
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// True where all ranks read the same clock and share the same memory.
  bool on_one_host() const;

  /// For the contenders that are MPI itself.
  MPI_Comm comm() const { return comm_; }

  void barrier() const;
  double max(double value) const;
  std::int64_t sum(std::int64_t value) const;
  /// Element by element, in place.
  void max(std::span<double> values) const;
  /// Rank 0's values, on every rank.
  std::vector<std::int64_t> broadcast(std::vector<std::int64_t> values) const;
  /// Every rank's values, of any length, by rank.
  std::vector<std::vector<std::int64_t>> allgather(const std::vector<std::int64_t>& values) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace bench
