#include "ops/mpi/mpi_bootstrap.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "ops/mpi/check.h"

namespace hora {

MpiBootstrap::MpiBootstrap(Communicator communicator, Patience patience)
    : Bootstrap(communicator.rank(), communicator.size()),
      communicator_(std::move(communicator)),
      patience_(std::move(patience)) {}

void MpiBootstrap::meet(const char* call) const {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  call_roll(communicator_.get(), all, std::string("hora::init (") + call + ")", patience_);
}

std::unique_ptr<Bootstrap> MpiBootstrap::of_host() {
  meet("MPI_Comm_split_type");
  return std::make_unique<MpiBootstrap>(communicator_.split_by_shared_memory(), patience_);
}

std::vector<std::vector<std::byte>> MpiBootstrap::all_gather(std::span<const std::byte> bytes) {
  meet("MPI_Allgather");
  const MPI_Comm comm = communicator_.get();
  const auto ranks = static_cast<std::size_t>(size());
  const std::uint64_t mine = bytes.size();
  std::vector<std::uint64_t> lengths(ranks);
  mpi_check(MPI_Allgather(&mine, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, comm),
            "MPI_Allgather of lengths");

  // All ranks see the same lengths, so all refuse together.
  std::vector<int> counts(ranks);
  std::vector<int> offsets(ranks);
  std::size_t total = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    counts[rank] = mpi_count(lengths[rank], "rank " + std::to_string(rank) + "'s part");
    offsets[rank] = mpi_count(total, "the gathered block");
    total += lengths[rank];
  }
  mpi_count(total, "the gathered block");
  std::vector<std::byte> gathered(total);
  mpi_check(MPI_Allgatherv(bytes.data(), static_cast<int>(mine), MPI_BYTE, gathered.data(),
                           counts.data(), offsets.data(), MPI_BYTE, comm),
            "MPI_Allgatherv");

  std::vector<std::vector<std::byte>> parts;
  parts.reserve(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = gathered.begin() + offsets[rank];
    parts.emplace_back(begin, begin + counts[rank]);
  }
  return parts;
}

std::vector<std::byte> MpiBootstrap::broadcast(std::span<const std::byte> bytes, int root) {
  meet("MPI_Bcast");
  const MPI_Comm comm = communicator_.get();
  std::uint64_t length = rank() == root ? bytes.size() : 0;
  mpi_check(MPI_Bcast(&length, 1, MPI_UINT64_T, root, comm), "MPI_Bcast of a length from", root);
  const int count = mpi_count(length, "the block to broadcast");
  std::vector<std::byte> result(length);
  if (rank() == root) {
    result.assign(bytes.begin(), bytes.end());
  }
  mpi_check(MPI_Bcast(result.data(), count, MPI_BYTE, root, comm), "MPI_Bcast from", root);
  return result;
}

void MpiBootstrap::barrier() {
  meet("MPI_Barrier");
  mpi_check(MPI_Barrier(communicator_.get()), "MPI_Barrier");
}

}  // namespace hora
