#include "ops/nccl/nccl_group.h"

#include <fmt/format.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <nvtx3/nvtx3.hpp>
#include <string>

#include "core/base/log.h"
#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

/// Rows of the timeline.
constexpr std::string_view kDownloadRow = "GPU: download";
constexpr std::string_view kUploadRow = "GPU: upload";

/// A row of the timeline.
constexpr std::string_view kCollectivesRow = "GPU: collectives";

ncclDataType_t type_of(const Unit& unit) {
  return unit.kind == OperationKind::broadcast ? travelling_type(unit.type) : to_nccl(unit.type);
}

/// Within one of several nodes, whose averages are divided in the end.
ncclRedOp_t part_of(const Unit& unit) {
  return to_nccl(unit.op == ReduceOp::average ? ReduceOp::sum : unit.op, unit.type);
}

/// A chunk in its slot as NCCL sees it: slices of equal length, the last ones' padding included.
struct Slices {
  Slices(const ChunkPart& part, std::byte* memory)
      : chunk(memory),
        length(slice_range(part.chunk, 0, part.slices).bytes),
        count(length / size_of(part.unit.unit.type)),
        type(type_of(part.unit.unit)) {}
  std::byte* at(int slice) const { return chunk + static_cast<std::size_t>(slice) * length; }

  std::byte* chunk;
  std::size_t length;  ///< bytes of a slice
  std::size_t count;   ///< elements of a slice
  ncclDataType_t type;
};

/// A unit's launch after that which changes the windows for it.
class AfterChange final : public PendingWork {
 public:
  AfterChange(Completion change, Completion launch)
      : change_(std::move(change)), launch_(std::move(launch)) {}
  bool poll() override { return change_.poll() && launch_.poll(); }

 private:
  Completion change_;
  Completion launch_;
};

}  // namespace

PinnedStaging::PinnedStaging(const CudaFunctions& cuda, std::size_t slots, std::size_t bytes,
                             DeviceTrace& trace)
    : cuda_(cuda), trace_(trace), download_(cuda, kUrgentPriority), upload_(cuda, kUrgentPriority) {
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back(
        {PinnedMemory(cuda, bytes), Event(cuda), Event(cuda), Event(cuda), Event(cuda)});
  }
}

const Event& PinnedStaging::take_out(const StagedSlice& slice, cudaStream_t stream) {
  PinnedSlot& own = slots_[slice.slot];
  own.complete.record(stream);
  wait(download_.get(), own.complete);
  wait(download_.get(), own.uploaded);
  trace_.begin(download_.get(), {kDownloadRow, "download", slice.unit, slice.memory.size()});
  if (!slice.memory.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(own.memory.data(), slice.memory.data(), slice.memory.size(),
                                  cudaMemcpyDeviceToHost, download_.get()),
               "cudaMemcpyAsync from the device");
  }
  trace_.end(download_.get());
  own.downloaded.record(download_.get());
  return own.downloaded;
}

const Event& PinnedStaging::make_room(const StagedSlice& slice) {
  return slots_[slice.slot].uploaded;
}

void PinnedStaging::bring_in(const StagedSlice& slice, cudaStream_t stream) {
  PinnedSlot& own = slots_[slice.slot];
  wait(upload_.get(), own.left);
  trace_.begin(upload_.get(), {kUploadRow, "upload", slice.unit, slice.memory.size()});
  if (!slice.memory.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(slice.memory.data(), own.memory.data(), slice.memory.size(),
                                  cudaMemcpyHostToDevice, upload_.get()),
               "cudaMemcpyAsync to the device");
  }
  trace_.end(upload_.get());
  own.uploaded.record(upload_.get());
  wait(stream, own.uploaded);
}

void PinnedStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

DeviceStaging::DeviceStaging(const CudaFunctions& cuda, std::size_t slots) {
  for (std::size_t i = 0; i < slots; ++i) slots_.push_back({nullptr, Event(cuda), Event(cuda)});
}

const Event& DeviceStaging::take_out(const StagedSlice& slice, cudaStream_t stream) {
  DeviceSlot& own = slots_[slice.slot];
  own.slice = slice.memory.data();
  own.complete.record(stream);
  return own.complete;
}

const Event& DeviceStaging::make_room(const StagedSlice& slice) {
  slots_[slice.slot].slice = slice.memory.data();
  return slots_[slice.slot].left;
}

void DeviceStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

std::size_t NcclGroupOptions::slice_bytes() const {
  return slice_range({0, align_up(chunk_bytes)}, 0, slices).bytes;
}

NcclGroup::NcclGroup(const NcclGroupOptions& options, NcclLaunches& launches)
    : options_(options),
      launches_(launches),
      trace_(options.trace, launches.cuda(), options.device) {
  options_.windows = options.windows && !is_alone();
  if (options_.windows && !launches.nccl().comm_window_register) {
    if (options.local_rank == 0) {
      log().warn("HORA_NCCL_WINDOWS=on has no effect: NCCL has windows from 2.27 on");
    }
    options_.windows = false;
  }
  if (options_.windows) launches.context().buffers.enable_windows();
  if (options_.allocates_at_once) allocate();
}

void NcclGroup::allocate() {
  if (options_.slots == 0 || staging_) return;
  const DeviceGuard device(launches_.cuda(), options_.device);
  const CudaFunctions& cuda = launches_.cuda();
  const std::size_t slice = options_.slice_bytes();
  for (std::size_t i = 0; i < options_.slots; ++i) {
    chunks_.emplace_back(cuda, static_cast<std::size_t>(options_.slices) * slice);
  }
  if (options_.device_staging) {
    staging_ = std::make_unique<DeviceStaging>(cuda, options_.slots);
  } else {
    staging_ = std::make_unique<PinnedStaging>(cuda, options_.slots, slice, trace_);
  }
}

std::byte* NcclGroup::staging(const ChunkPart& part) {
  return staging_->data(part.slot);
}

void NcclGroup::trace_begin(const ChunkPart& part, std::string_view phase) {
  const UnitKey unit = options_.trace.unit(part.unit.number);
  trace_.begin(launches_.stream(), {kCollectivesRow, phase, unit, part.chunk.bytes});
}

StagedSlice NcclGroup::own_slice(const ChunkPart& part) {
  const UnitKey unit = options_.trace.unit(part.unit.number);
  if (part.slice.bytes == 0) return {part.slot, {}, unit};
  std::byte* const data = chunks_[part.slot].data() + (part.slice.begin - part.chunk.begin);
  return {part.slot, {data, part.slice.bytes}, unit};
}

Completion NcclGroup::run(const BoundUnit& unit) {
  WindowPlan plan;
  if (options_.windows) plan = launches_.context().buffers.plan(unit, options_.local_rank);
  if (!sums_scaled_in_windows(unit.unit)) plan.shared.clear();
  const bool changes = plan.changes();
  Completion changed = changes ? change(plan, unit.takes_turns) : Completion();
  const auto enqueue = [this, &unit, plan] {
    const nvtx3::scoped_range range("hora collective", nvtx3::payload{unit.unit.bytes});
    for (const auto& work : unit.work) work->wait_ready(launches_.stream());
    trace_.begin(launches_.stream(), {kCollectivesRow, name_of(unit.unit.kind),
                                      options_.trace.unit(unit.number), unit.unit.bytes});
    if (unit.is_joined_proxy) {
      proxy_ = joined_proxy(unit);
    } else {
      prepare(unit, plan);
    }
    if (!plan.apart.empty()) copy_apart(unit, plan, /*out_of_tensors=*/true);
    call_in_place(unit, plan);
  };
  const auto enqueued = [this, &unit, plan]() -> const Event* {
    if (!plan.apart.empty()) copy_apart(unit, plan, /*out_of_tensors=*/false);
    proxy_.reset();
    if (unit.unit.postscale != 1.0 && !unit.is_joined_proxy) {
      const DataType type = unit.unit.type;
      pass_over_tensors(
          unit, {},
          {.pieces = {}, .source_type = type, .target_type = type, .scale = unit.unit.postscale});
    }
    trace_.end(launches_.stream());
    for (const auto& work : unit.work) work->record_done(launches_.stream());
    launches_.watch();
    return nullptr;
  };
  Completion launch = launches_.launch(unit.takes_turns, enqueue, enqueued);
  if (!changes) return launch;
  return Completion(std::make_unique<AfterChange>(std::move(changed), std::move(launch)));
}

/// A launch of its own: NCCL chooses kernels by the windows that it has then.
Completion NcclGroup::change(const WindowPlan& plan, bool takes_turn) {
  const auto enqueue = [this, plan] {
    launches_.name_background("ncclCommWindowRegister (HORA_NCCL_WINDOWS) in the background");
    launches_.context().buffers.carry_out(plan, launches_.nccl());
  };
  const auto enqueued = [this]() -> const Event* {
    launches_.name_background(NcclCommunicator::kAnyOperation);
    return nullptr;
  };
  return launches_.launch(takes_turn, enqueue, enqueued);
}

/// Between this rank's tensors that are apart and what stands for them.
void NcclGroup::copy_apart(const BoundUnit& unit, const WindowPlan& plan, bool out_of_tensors) {
  const Unit& u = unit.unit;
  if (out_of_tensors) proxy_ = allocate_owned(launches_.context().heap, u.bytes);
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < u.tensors.size(); ++i) {
    const Range range = u.tensors[i].range;
    if (!plan.is_apart(i) || range.bytes == 0) continue;
    std::byte* const tensor = unit.tensor(i, options_.local_rank);
    std::byte* const copy = proxy_.get() + range.begin;
    const auto elements = static_cast<std::int64_t>(range.bytes / size_of(u.type));
    pieces.push_back(out_of_tensors ? CopyPiece{tensor, copy, elements}
                                    : CopyPiece{copy, tensor, elements});
  }
  launches_.copy(pieces, {.pieces = {}, .source_type = u.type, .target_type = u.type});
}

/// Averages of tensors in `plan.shared` become sums.
void NcclGroup::prepare(const BoundUnit& unit, const WindowPlan& plan) {
  if (needs_preparation(unit.unit)) pass_over_tensors(unit, plan.shared, preparation(unit.unit));
  if (plan.shared.empty()) return;
  std::vector<bool> others = plan.shared;
  others.flip();
  BatchedCopy scaled = preparation(unit.unit);
  scaled.scale /= options_.local_size;
  pass_over_tensors(unit, others, scaled);
}

/// Each of this rank's tensors, but those that are left out (empty: none), becomes what `copy`,
/// whose pieces are still to be named, makes of it.
void NcclGroup::pass_over_tensors(const BoundUnit& unit, const std::vector<bool>& left_out,
                                  BatchedCopy copy) {
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    if (!left_out.empty() && left_out[i]) continue;
    std::byte* const data = unit.tensor(i, options_.local_rank);
    const std::size_t count = unit.unit.tensors[i].range.bytes / size_of(unit.unit.type);
    if (count > 0) pieces.push_back({data, data, static_cast<std::int64_t>(count)});
  }
  launches_.copy(pieces, copy);
}

/// Freed in the order of the collectives' stream.
std::shared_ptr<std::byte> NcclGroup::joined_proxy(const BoundUnit& unit) {
  const Unit& u = unit.unit;
  auto memory = allocate_owned(launches_.context().heap, u.bytes);
  launches_.context().identity.fill(u.type, u.op, memory.get(), u.bytes / size_of(u.type));
  return memory;
}

void NcclGroup::call_in_place(const BoundUnit& unit, const WindowPlan& plan) {
  if (is_alone()) return;
  const auto type = type_of(unit.unit);
  NcclCallGroup calls(launches_.nccl());
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const Range range = unit.unit.tensors[i].range;
    const bool in_proxy = unit.is_joined_proxy || plan.is_apart(i);
    std::byte* const data =
        in_proxy ? proxy_.get() + range.begin : unit.tensor(i, options_.local_rank);
    const std::size_t count = range.bytes / size_of(unit.unit.type);
    if (count == 0) continue;
    if (unit.unit.kind == OperationKind::broadcast) {
      launches_.call(&NcclFunctions::broadcast, "ncclBroadcast", data, data, count, type,
                     unit.root_index);
    } else {
      const ncclRedOp_t op = plan.is_shared(i) ? ncclSum : to_nccl(unit.unit.op, unit.unit.type);
      launches_.call(&NcclFunctions::all_reduce, "ncclAllReduce", data, data, count, type, op);
    }
  }
  calls.end();
}

Completion NcclGroup::reduce_scatter(const ChunkPart& part) {
  allocate();
  if (!part.has_input) {
    // No other rank waits for it, so it takes no turn.
    return launches_.launch(
        false, [] {}, [this, part] { return &staging_->make_room(own_slice(part)); });
  }
  const auto enqueue = [this, part] {
    const nvtx3::scoped_range range("hora reduce-scatter", nvtx3::payload{part.chunk.bytes});
    await_tensors(part);
    trace_begin(part, "pack");
    copy_tensors(part, /*out_of_tensors=*/true);
    trace_begin(part, "reduce_scatter");
    scatter(part);
  };
  const auto enqueued = [this, part] {
    trace_.end(launches_.stream());
    const Event& out = staging_->take_out(own_slice(part), launches_.stream());
    launches_.watch();
    return &out;
  };
  return launches_.launch(part.unit.takes_turns, enqueue, enqueued);
}

Completion NcclGroup::all_gather(const ChunkPart& part) {
  const auto enqueue = [this, part] {
    const nvtx3::scoped_range range("hora all-gather", nvtx3::payload{part.chunk.bytes});
    staging_->bring_in(own_slice(part), launches_.stream());
    trace_begin(part, "all_gather");
    gather(part);
  };
  const auto enqueued = [this, part]() -> const Event* {
    if (!part.has_input) await_tensors(part);
    trace_begin(part, "unpack");
    copy_tensors(part, /*out_of_tensors=*/false);
    trace_.end(launches_.stream());
    staging_->leave(part.slot, launches_.stream());
    const bool is_last = part.chunk.begin + part.chunk.bytes == part.unit.unit.bytes;
    if (is_last) {
      for (const auto& work : part.unit.work) work->record_done(launches_.stream());
    }
    launches_.watch();
    return nullptr;
  };
  return launches_.launch(part.unit.takes_turns, enqueue, enqueued);
}

/// Before the collectives' stream touches the unit's tensors; once for all its chunks.
void NcclGroup::await_tensors(const ChunkPart& part) {
  if (part.chunk.begin > 0) return;
  for (const auto& work : part.unit.work) work->wait_ready(launches_.stream());
}

/// Between the tensors and the slot's contiguous chunk. A broadcast's tensors are read on the
/// root alone.
void NcclGroup::copy_tensors(const ChunkPart& part, bool out_of_tensors) {
  const Unit& unit = part.unit.unit;
  if (out_of_tensors && unit.kind == OperationKind::broadcast &&
      part.unit.root_local != options_.local_rank) {
    return;
  }
  std::byte* const chunk = chunks_[part.slot].data();
  if (part.unit.is_joined_proxy) {
    if (out_of_tensors) {
      launches_.context().identity.fill(unit.type, unit.op, chunk,
                                        part.chunk.bytes / size_of(unit.type));
    }
    return;
  }
  std::vector<CopyPiece> pieces;
  for (const Run& run : runs(unit, part.chunk)) {
    std::byte* const tensor = part.unit.tensor(run.tensor, options_.local_rank) + run.range.begin;
    const auto elements = static_cast<std::int64_t>(run.range.bytes / size_of(unit.type));
    std::byte* const packed = chunk + run.offset;
    pieces.push_back(out_of_tensors ? CopyPiece{tensor, packed, elements}
                                    : CopyPiece{packed, tensor, elements});
  }
  const BatchedCopy plain{.pieces = {}, .source_type = unit.type, .target_type = unit.type};
  launches_.copy(pieces, out_of_tensors ? preparation(unit) : plain);
}

void NcclGroup::scatter(const ChunkPart& part) {
  if (is_alone()) return;
  const Slices slices(part, chunks_[part.slot].data());
  NcclCallGroup calls(launches_.nccl());
  if (part.unit.unit.kind == OperationKind::broadcast) {
    launches_.call(&NcclFunctions::broadcast, "ncclBroadcast", slices.chunk, slices.chunk,
                   slices.count * static_cast<std::size_t>(part.slices), slices.type,
                   part.unit.root_local);
  } else if (part.slices == options_.local_size) {
    launches_.call(&NcclFunctions::reduce_scatter, "ncclReduceScatter", slices.chunk,
                   slices.at(options_.local_rank), slices.count, slices.type,
                   part_of(part.unit.unit));
  } else {
    for (int s = 0; s < part.slices; ++s) {
      launches_.call(&NcclFunctions::reduce, "ncclReduce", slices.at(s), slices.at(s), slices.count,
                     slices.type, part_of(part.unit.unit), s);
    }
  }
  calls.end();
}

void NcclGroup::gather(const ChunkPart& part) {
  if (is_alone()) return;
  const Slices slices(part, chunks_[part.slot].data());
  NcclCallGroup calls(launches_.nccl());
  if (part.slices == options_.local_size) {
    launches_.call(&NcclFunctions::all_gather, "ncclAllGather", slices.at(options_.local_rank),
                   slices.chunk, slices.count, slices.type);
  } else {
    for (int s = 0; s < part.slices; ++s) {
      launches_.call(&NcclFunctions::broadcast, "ncclBroadcast", slices.at(s), slices.at(s),
                     slices.count, slices.type, s);
    }
  }
  calls.end();
}

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
  bool keep_waiting() { return exchange_.launches_.context().watch.keep_waiting(waits_since_); }

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
            fmt::format("the GPU of rank {} of the set has no memory for its result of {} bytes: "
                        "free some there, or exchange less at a time; nothing was exchanged, and "
                        "collectives go on",
                        lacking, map.result_bytes(lacking))));
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
  if (is_even(work.transfers, topology_.size())) {
    launches_.call(&NcclFunctions::all_gather, "ncclAllGather", work.input, work.result,
                   work.transfers.front().range.bytes, kBytes);
    return;
  }
  NcclCallGroup calls(launches_.nccl());
  for (const Transfer& transfer : work.transfers) {
    std::byte* const target = work.result + transfer.destination_offset;
    const std::byte* const source =
        transfer.source == rank_ ? work.input + transfer.source_offset : target;
    launches_.call(&NcclFunctions::broadcast, "ncclBroadcast", source, target, transfer.range.bytes,
                   kBytes, transfer.source);
  }
  calls.end();
}

void NcclExchange::send_and_receive(const Work& work) {
  NcclCallGroup calls(launches_.nccl());
  for (const Transfer& transfer : work.transfers) {
    if (transfer.source == rank_) {
      launches_.call(&NcclFunctions::send, "ncclSend", work.input + transfer.source_offset,
                     transfer.range.bytes, kBytes, transfer.destination);
    }
    if (transfer.destination == rank_) {
      launches_.call(&NcclFunctions::recv, "ncclRecv", work.result + transfer.destination_offset,
                     transfer.range.bytes, kBytes, transfer.source);
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
  const Unit& unit = work.unit.unit;
  const ncclDataType_t type = to_nccl(unit.type);
  const ncclRedOp_t op = to_nccl(unit.op, unit.type);
  if (is_even(work.transfers, topology_.size())) {
    const std::size_t count = work.transfers.front().range.bytes / size_of(unit.type);
    launches_.call(&NcclFunctions::reduce_scatter, "ncclReduceScatter", work.input, work.result,
                   count, type, op);
    return;
  }
  NcclCallGroup calls(launches_.nccl());
  for (const Transfer& transfer : work.transfers) {
    const std::size_t count = transfer.range.bytes / size_of(unit.type);
    // Only the root uses it.
    std::byte* const target = transfer.destination == rank_ ? work.result : nullptr;
    launches_.call(&NcclFunctions::reduce, "ncclReduce", work.input + transfer.source_offset,
                   target, count, type, op, transfer.destination);
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
  launches_.copy(pieces, kind);
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
  DeviceGuard::try_emplace(device, context_.cuda, context_.device);
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

namespace {

class Reached final : public PendingWork {
 public:
  Reached(const CudaFunctions& cuda, int device, std::shared_ptr<Event> event)
      : cuda_(cuda), device_(device), event_(std::move(event)) {}
  bool poll() override {
    const DeviceGuard device(cuda_, device_);
    return event_->query();
  }

 private:
  const CudaFunctions& cuda_;
  int device_;
  std::shared_ptr<Event> event_;
};

}  // namespace

DeviceSpace::DeviceSpace(const CudaFunctions& cuda, int device, EventPool& events)
    : cuda_(cuda), device_(device), events_(events), stream_(cuda, kUrgentPriority) {}

std::byte* DeviceSpace::allocate(std::size_t bytes) {
  const DeviceGuard device(cuda_, device_);
  DeviceMemory memory(cuda_, bytes);
  std::byte* const data = memory.data();
  blocks_.emplace(data, std::move(memory));
  return data;
}

void DeviceSpace::release(std::byte* data) noexcept {
  std::optional<DeviceGuard> device;
  DeviceGuard::try_emplace(device, cuda_, device_);
  blocks_.erase(data);
}

Completion DeviceSpace::reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                               std::byte* output, std::size_t count) {
  if (count == 0) return {};
  const DeviceGuard device(cuda_, device_);
  const DeviceReduction launch{.type = reduction.type,
                               .op = reduction.op,
                               .inputs = inputs,
                               .output = output,
                               .count = static_cast<std::int64_t>(count),
                               .scale = reduction.scale};
  cuda_check(cuda_, cuda_.device_reduce(launch, stream_.get()), "the kernel device_reduce");
  return reached();
}

Completion DeviceSpace::convert(DataType source, const std::byte* input, DataType target,
                                std::byte* output, std::size_t count) {
  if (count == 0) return {};
  const DeviceGuard device(cuda_, device_);
  const CopyPiece piece{
      .source = input, .target = output, .elements = static_cast<std::int64_t>(count)};
  const BatchedCopy copy{.pieces = {&piece, 1}, .source_type = source, .target_type = target};
  cuda_check(cuda_, cuda_.batched_copy(copy, stream_.get()), "the kernel batched_copy");
  return reached();
}

/// Complete when the stream has done what it was given so far.
Completion DeviceSpace::reached() {
  auto event = events_.take();
  event->record(stream_.get());
  return Completion(std::make_unique<Reached>(cuda_, device_, std::move(event)));
}

PointToPoint::Request DeviceLink::send(int to, int tag, std::span<const std::byte> bytes) {
  make_current(cuda_, device_);
  return link_.send(to, tag, bytes);
}

PointToPoint::Request DeviceLink::receive(int from, int tag, std::span<std::byte> bytes) {
  make_current(cuda_, device_);
  return link_.receive(from, tag, bytes);
}

bool DeviceLink::test(Request request) {
  make_current(cuda_, device_);
  return link_.test(request);
}

bool DeviceLink::cancel(Request receive) {
  return link_.cancel(receive);
}

}  // namespace hora::internal
