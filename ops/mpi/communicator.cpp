#include "ops/mpi/communicator.h"

#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "ops/mpi/check.h"

namespace hora::internal {
namespace {

struct OwnedGroup {
  OwnedGroup() = default;
  OwnedGroup(const OwnedGroup&) = delete;
  OwnedGroup& operator=(const OwnedGroup&) = delete;
  ~OwnedGroup() {
    if (handle != MPI_GROUP_NULL) MPI_Group_free(&handle);
  }
  MPI_Group handle = MPI_GROUP_NULL;
};

std::vector<int> all_ranks_of(MPI_Comm comm) {
  int size = 0;
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Communicator::Communicator(MPI_Comm comm) : comm_(comm) {
  if (comm_ == MPI_COMM_NULL) {
    return;
  }
  try {
    mpi_check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    mpi_check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  } catch (...) {
    release();
    throw;
  }
}

Communicator::Communicator(Communicator&& other) noexcept
    : comm_(std::exchange(other.comm_, MPI_COMM_NULL)),
      rank_(std::exchange(other.rank_, 0)),
      size_(std::exchange(other.size_, 0)) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    release();
    comm_ = std::exchange(other.comm_, MPI_COMM_NULL);
    rank_ = std::exchange(other.rank_, 0);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Communicator::~Communicator() {
  release();
}

void Communicator::release() noexcept {
  if (comm_ == MPI_COMM_NULL) {
    return;
  }
  int finalized = 0;
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) {
    MPI_Comm_free(&comm_);
  }
  comm_ = MPI_COMM_NULL;
}

Communicator Communicator::duplicate_of(MPI_Comm original, const char* call) {
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(original, &comm), call);
  return Communicator(comm);
}

Communicator Communicator::world(const Patience& patience) {
  return of(MPI_COMM_WORLD, patience);
}

Communicator Communicator::of(MPI_Comm application, const Patience& patience) {
  if (application == MPI_COMM_NULL) {
    throw Error(ErrorCode::invalid_argument,
                "hora::init: the communicator is MPI_COMM_NULL: only ranks of the "
                "communicator call init");
  }
  int inter = 0;
  mpi_check(MPI_Comm_test_inter(application, &inter), "MPI_Comm_test_inter");
  if (inter != 0) {
    throw Error(ErrorCode::invalid_argument,
                "hora::init: the communicator is an intercommunicator: merge it first "
                "(MPI_Intercomm_merge)");
  }
  call_roll(application, all_ranks_of(application), "hora::init", patience);
  return duplicate_of(application, "MPI_Comm_dup of the application's communicator");
}

Communicator Communicator::of(const std::vector<int>& ranks, const Patience& patience) {
  int size = 0;
  int world_rank = 0;
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
  const bool ascends =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (!ascends || ranks.front() < 0 || ranks.back() >= size) {
    throw Error(
        ErrorCode::invalid_argument,
        "hora::init: InitOptions::ranks must ascend, and be ranks of MPI_COMM_WORLD, 0 to " +
            std::to_string(size - 1));
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), world_rank)) {
    throw Error(ErrorCode::invalid_argument,
                "hora::init: rank " + std::to_string(world_rank) +
                    " of MPI_COMM_WORLD is not in InitOptions::ranks: only those call init");
  }
  if (static_cast<int>(ranks.size()) == size) {
    return world(patience);  // as where none is named
  }
  call_roll(MPI_COMM_WORLD, ranks, "hora::init", patience);
  OwnedGroup world;
  OwnedGroup group;
  mpi_check(MPI_Comm_group(MPI_COMM_WORLD, &world.handle), "MPI_Comm_group");
  mpi_check(
      MPI_Group_incl(world.handle, static_cast<int>(ranks.size()), ranks.data(), &group.handle),
      "MPI_Group_incl");
  MPI_Comm comm = MPI_COMM_NULL;
  constexpr int kTag = 4711;  // of the group's own agreement
  mpi_check(MPI_Comm_create_group(MPI_COMM_WORLD, group.handle, kTag, &comm),
            "MPI_Comm_create_group");
  return Communicator(comm);
}

Communicator Communicator::duplicate() const {
  return duplicate_of(comm_, "MPI_Comm_dup");
}

Communicator Communicator::split(int color, int key) const {
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &comm), "MPI_Comm_split");
  return Communicator(comm);
}

Communicator Communicator::split_by_shared_memory() const {
  MPI_Comm comm = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &comm),
            "MPI_Comm_split_type");
  return Communicator(comm);
}

PendingDuplicate::PendingDuplicate(const Communicator& original)
    : duplicate_(std::make_unique<MPI_Comm>(MPI_COMM_NULL)) {
  mpi_check(MPI_Comm_idup(original.get(), duplicate_.get(), &request_), "MPI_Comm_idup");
}

PendingDuplicate::~PendingDuplicate() {
  if (request_ != MPI_REQUEST_NULL) static_cast<void>(duplicate_.release());
}

std::optional<Communicator> PendingDuplicate::poll() {
  int done = 0;
  mpi_check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test of a duplicate");
  if (done == 0) return std::nullopt;
  return Communicator(*duplicate_);
}

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
  const std::uint64_t own = bytes.size();
  std::vector<std::uint64_t> lengths(ranks);
  mpi_check(MPI_Allgather(&own, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, comm),
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
  mpi_check(MPI_Allgatherv(bytes.data(), static_cast<int>(own), MPI_BYTE, gathered.data(),
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

}  // namespace hora::internal
