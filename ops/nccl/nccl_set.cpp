#include "ops/nccl/nccl_set.h"

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <nvtx3/nvtx3.hpp>
#include <optional>
#include <string>
#include <utility>

#include "ops/cuda/functions.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/functions.h"

namespace hora::internal {
namespace {

/// The type that every exchange but a reduce-scatter moves.
constexpr ncclDataType_t kBytes = ncclUint8;

/// One transfer for each rank, all of one length.
bool is_even(const ByteLayout& transfers, int ranks) {
  return transfers.size() == static_cast<std::size_t>(ranks) &&
         std::ranges::all_of(transfers, [&](const Transfer& transfer) {
           return transfer.range.bytes == transfers.front().range.bytes;
         });
}

NcclGroupOptions allocating(NcclGroupOptions options, bool at_once) {
  options.allocates_at_once = at_once;
  return options;
}

}  // namespace

/// One exchange under way.
struct NcclExchange::Work {
  explicit Work(const BoundUnit& bound) : unit(bound) {}

  const BoundUnit& unit;
  ByteLayout transfers;
  const std::byte* input = nullptr;
  std::shared_ptr<std::byte> prepared;  ///< in the input's place
  std::byte* result = nullptr;
  std::size_t result_bytes = 0;
};

NcclExchange::NcclExchange(int local_rank, PlaceInSet place, NcclLaunches& launches,
                           DeviceHeap& heap)
    : local_rank_(local_rank), rank_(place.rank), launches_(launches), heap_(heap) {
  auto& ranks = topology_.ranks_of_node.emplace_back(static_cast<std::size_t>(place.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
}

/// Extents, memory on every rank, then the launch.
class NcclExchange::Run final : public PendingWork {
 public:
  Run(NcclExchange& exchange, const BoundUnit& unit, ExchangeAgreement& agreement)
      : exchange_(exchange), agreement_(agreement), work_(std::make_shared<Work>(unit)) {}

  bool poll() override {
    if (!launched_) {
      const ExchangeExtents* const extents = agreement_.extents();
      if (!extents) return keep_waiting();
      if (!std::exchange(told_, true)) agreement_.tell(exchange_.take_memory(*work_, *extents));
      const auto lacking = agreement_.lacking();
      if (!lacking) return keep_waiting();
      if (*lacking != ExchangeAgreement::kNoRank) {
        exchange_.refuse(*work_, *extents, *lacking);
        return true;
      }
      launched_ = exchange_.launch(work_);
    }
    return launched_->poll();
  }

 private:
  /// Polls the watch; returns false.
  bool keep_waiting() {
    const DeviceWatch& watch = exchange_.launches_.context().watch;
    if (!waits_since_) waits_since_ = watch.start();
    watch.check_wait(*waits_since_);
    return false;
  }

  NcclExchange& exchange_;
  ExchangeAgreement& agreement_;
  std::shared_ptr<Work> work_;
  bool told_ = false;
  std::optional<DeviceWatch::Time> waits_since_;
  std::optional<Completion> launched_;
};

Completion NcclExchange::run(const BoundUnit& unit, ExchangeAgreement& agreement) {
  return Completion(std::make_unique<Run>(*this, unit, agreement));
}

/// False where this rank lacks it.
bool NcclExchange::take_memory(Work& work, const ExchangeExtents& extents) {
  const BoundUnit& unit = work.unit;
  const ExchangeMap map(topology_, extents);
  work.transfers = map.layout(0, 0);
  work.input = unit.tensor(0, local_rank_);
  work.result_bytes = map.result_bytes(rank_);
  try {
    work.result = unit.exchange.result->allocate(map.result_rows(rank_), work.result_bytes);
    NcclBuffers& buffers = launches_.context().buffers;
    const bool in_windows = buffers.in_window(work.input) && buffers.in_window(work.result);
    if (needs_preparation(unit.unit) || in_windows) {
      work.prepared = allocate_owned(heap_, input_bytes(work));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    return false;
  }
  return true;
}

void NcclExchange::refuse(const Work& work, const ExchangeExtents& extents, int lacking) const {
  const ExchangeMap map(topology_, extents);
  work.unit.exchange.result->refuse(
      Error(ErrorCode::out_of_memory,
            "the GPU of rank " + std::to_string(lacking) +
                " of the set has no memory for its result of " +
                std::to_string(map.result_bytes(lacking)) +
                " bytes: free some there, or exchange less at a time; nothing was exchanged, and "
                "collectives go on"));
}

Completion NcclExchange::launch(const std::shared_ptr<Work>& work) {
  const auto enqueued = [this, work]() -> const Event* {
    if (work->unit.unit.postscale != 1.0) scale(*work);
    work->prepared.reset();
    for (const auto& submission : work->unit.work) submission->record_done(launches_.stream());
    launches_.watch();
    return nullptr;
  };
  return launches_.launch(
      work->unit.takes_turns, [this, work] { enqueue(*work); }, enqueued);
}

void NcclExchange::enqueue(Work& work) {
  const BoundUnit& unit = work.unit;
  const nvtx3::scoped_range range("hora exchange", nvtx3::payload{work.result_bytes});
  for (const auto& submission : unit.work) submission->wait_ready(launches_.stream());
  if (work.prepared) {
    prepare(work);
    work.input = work.prepared.get();
  }
  switch (unit.unit.kind) {
    case OperationKind::alltoall:
      return send_and_receive(work);
    case OperationKind::reduce_scatter:
      return reduce(work);
    default:
      return gather(work);
  }
}

void NcclExchange::gather(const Work& work) {
  const NcclFunctions& nccl = launches_.nccl();
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  if (is_even(work.transfers, topology_.size())) {
    nccl_check(nccl,
               nccl.all_gather(work.input, work.result, work.transfers.front().range.bytes, kBytes,
                               comm, stream),
               "ncclAllGather");
    return;
  }
  NcclCallGroup calls(nccl);
  for (const Transfer& transfer : work.transfers) {
    std::byte* const target = work.result + transfer.destination_offset;
    const std::byte* const source =
        transfer.source == rank_ ? work.input + transfer.source_offset : target;
    nccl_check(
        nccl,
        nccl.broadcast(source, target, transfer.range.bytes, kBytes, transfer.source, comm, stream),
        "ncclBroadcast");
  }
  calls.end();
}

void NcclExchange::send_and_receive(const Work& work) {
  const NcclFunctions& nccl = launches_.nccl();
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  NcclCallGroup calls(nccl);
  for (const Transfer& transfer : work.transfers) {
    if (transfer.source == rank_) {
      nccl_check(nccl,
                 nccl.send(work.input + transfer.source_offset, transfer.range.bytes, kBytes,
                           transfer.destination, comm, stream),
                 "ncclSend");
    }
    if (transfer.destination == rank_) {
      nccl_check(nccl,
                 nccl.recv(work.result + transfer.destination_offset, transfer.range.bytes, kBytes,
                           transfer.source, comm, stream),
                 "ncclRecv");
    }
  }
  calls.end();
}

void NcclExchange::prepare(const Work& work) {
  copy(preparation(work.unit.unit), work.input, work.prepared.get(), input_bytes(work));
}

/// Bytes of the whole input of this rank.
std::size_t NcclExchange::input_bytes(const Work& work) const {
  if (work.unit.unit.kind == OperationKind::reduce_scatter) return length_of(work.transfers);
  std::size_t bytes = 0;
  for (const Transfer& transfer : work.transfers) {
    if (transfer.source == rank_) bytes += transfer.range.bytes;
  }
  return bytes;
}

void NcclExchange::reduce(const Work& work) {
  const NcclFunctions& nccl = launches_.nccl();
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  const Unit& unit = work.unit.unit;
  const ncclDataType_t type = to_nccl(unit.type);
  const ncclRedOp_t op = to_nccl(unit.op, unit.type);
  if (is_even(work.transfers, topology_.size())) {
    const std::size_t count = work.transfers.front().range.bytes / size_of(unit.type);
    nccl_check(nccl, nccl.reduce_scatter(work.input, work.result, count, type, op, comm, stream),
               "ncclReduceScatter");
    return;
  }
  NcclCallGroup calls(nccl);
  for (const Transfer& transfer : work.transfers) {
    const std::size_t count = transfer.range.bytes / size_of(unit.type);
    // Only the root uses it.
    std::byte* const target = transfer.destination == rank_ ? work.result : nullptr;
    nccl_check(nccl,
               nccl.reduce(work.input + transfer.source_offset, target, count, type, op,
                           transfer.destination, comm, stream),
               "ncclReduce");
  }
  calls.end();
}

/// Reduce-scatters alone have a scale.
void NcclExchange::scale(const Work& work) {
  const Unit& unit = work.unit.unit;
  copy({.pieces = {}, .source_type = unit.type, .target_type = unit.type, .scale = unit.postscale},
       work.result, work.result, work.result_bytes);
}

void NcclExchange::copy(const BatchedCopy& kind, const std::byte* source, std::byte* target,
                        std::size_t bytes) {
  if (bytes == 0) return;
  const std::array pieces = {
      CopyPiece{source, target, static_cast<std::int64_t>(bytes / size_of(kind.target_type))}};
  BatchedCopy copy = kind;
  copy.pieces = pieces;
  cuda_check(launches_.cuda(), launches_.cuda().batched_copy(copy, launches_.stream()),
             "the kernel batched_copy");
}

NcclSet::NcclSet(NcclContext& context, NcclGroupOptions options, LaunchTicketLock ticket_lock,
                 Connects connects)
    : context_(context),
      options_(std::move(options)),
      communicator_(context.communicators.add()),
      launches_(
          context, communicator_, ticket_lock,
          connects == Connects::when_used ? connection(ticket_lock) : NcclLaunches::Connection()),
      group_(allocating(options_, connects == Connects::at_start), launches_),
      exchange_(options_.local_rank, options_.place(), launches_, context.heap) {}

NcclSet::~NcclSet() {
  // The thread keeps the device where it has none: what the members free is there.
  std::optional<DeviceGuard> device;
  try {
    device.emplace(context_.cuda, context_.device);
  } catch (const Error&) {
    // CUDA has failed; NCCL is to end its part all the same.
  }
  communicator_.abort();
}

void NcclSet::disconnect() {
  const DeviceGuard device(context_.cuda, context_.device);
  context_.communicators.retire(communicator_);
}

void NcclSet::connect(const ncclUniqueId& id) {
  const PlaceInSet place = options_.place();
  communicator_ = NcclCommunicator(context_.nccl, id, place.ranks, place.rank, options_.most_ctas);
}

NcclLaunches::Connection NcclSet::connection(LaunchTicketLock ticket_lock) {
  static_assert(sizeof(ncclUniqueId) <= sizeof(LaunchTicketLockMemory::note));
  const auto announce = [this, ticket_lock] {
    if (!ticket_lock.leads()) return;
    ncclUniqueId id{};
    nccl_check(context_.nccl, context_.nccl.get_unique_id(&id), "ncclGetUniqueId");
    std::memcpy(ticket_lock.note().data(), &id, sizeof id);
  };
  const auto begin = [this, ticket_lock] {
    ncclUniqueId id{};
    std::memcpy(&id, ticket_lock.note().data(), sizeof id);
    connect(id);
  };
  return {announce, begin};
}

}  // namespace hora::internal
