#include "bench/harness/ranks.h"

#include <stdexcept>

namespace bench {

Ranks::Ranks() {
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (provided != MPI_THREAD_MULTIPLE) {
    throw std::runtime_error(
        "the benchmarks call MPI beside hora's engine, for which MPI must offer "
        "MPI_THREAD_MULTIPLE; this one does not");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

Ranks::~Ranks() {
  // After hora's shutdown MPI may be finished already, which has freed everything.
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Comm_free(&comm_);
}

bool Ranks::on_one_host() const {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int ranks_of_host = 0;
  MPI_Comm_size(host, &ranks_of_host);
  MPI_Comm_free(&host);
  return ranks_of_host == size_;
}

void Ranks::barrier() const {
  MPI_Barrier(comm_);
}

double Ranks::max(double value) const {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, comm_);
  return value;
}

std::int64_t Ranks::sum(std::int64_t value) const {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_SUM, comm_);
  return value;
}

void Ranks::max(std::span<double> values) const {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                comm_);
}

std::vector<std::int64_t> Ranks::broadcast(std::vector<std::int64_t> values) const {
  auto count = static_cast<int>(values.size());
  MPI_Bcast(&count, 1, MPI_INT, 0, comm_);
  values.resize(static_cast<std::size_t>(count));
  MPI_Bcast(values.data(), count, MPI_INT64_T, 0, comm_);
  return values;
}

std::vector<std::vector<std::int64_t>> Ranks::allgather(
    const std::vector<std::int64_t>& values) const {
  std::vector<std::vector<std::int64_t>> all;
  for (int root = 0; root < size_; ++root) {
    auto count = static_cast<int>(values.size());
    MPI_Bcast(&count, 1, MPI_INT, root, comm_);
    auto& its = all.emplace_back(values);
    its.resize(static_cast<std::size_t>(count));
    MPI_Bcast(its.data(), count, MPI_INT64_T, root, comm_);
  }
  return all;
}

}  // namespace bench
