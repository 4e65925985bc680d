#include "ops/nccl/nccl_group.h"

#include <nvtx3/nvtx3.hpp>
#include <utility>

#include "ops/cuda/check.h"
#include "ops/cuda/device_guard.h"
#include "ops/nccl/check.h"

namespace hora {
namespace {

/// A row of the timeline.
constexpr std::string_view kCollectivesRow = "GPU: collectives";

/// int16, which NCCL does not have, can still be broadcast: as any other type of two bytes.
ncclDataType_t type_of(const Unit& unit) {
  const bool only_travels = unit.kind == OperationKind::broadcast;
  return to_nccl(only_travels && unit.type == DataType::int16 ? DataType::float16 : unit.type);
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

ncclRedOp_t reduction_of(const BoundUnit& unit) {
  return unit.unit.op == ReduceOp::average ? ncclAvg : ncclSum;
}

/// Everything between construction and destruction is one call of NCCL.
class NcclCallGroup {
 public:
  explicit NcclCallGroup(const NcclFunctions& nccl) : nccl_(nccl) {
    nccl_check(nccl_, nccl_.group_start(), "ncclGroupStart");
  }
  void end() { nccl_check(nccl_, nccl_.group_end(), "ncclGroupEnd"); }

 private:
  const NcclFunctions& nccl_;
};

}  // namespace

class NcclGroup::Launch final : public PendingWork {
 public:
  Launch(NcclGroup& group, Step enqueue, LastStep enqueued)
      : group_(group),
        ticket_(group.next_launch_++),
        enqueue_(std::move(enqueue)),
        enqueued_(std::move(enqueued)) {}

  bool poll() override {
    if (stage_ == Stage::queued && group_.launched_ != ticket_) return false;
    const DeviceGuard device(group_.cuda_, group_.options_.device);
    if (stage_ == Stage::queued) {
      enqueue_();
      stage_ = Stage::taken_in;
    }
    if (stage_ == Stage::taken_in) {
      if (!group_.communicator_.ready()) return false;
      event_ = enqueued_();
      ++group_.launched_;
      stage_ = Stage::under_way;
    }
    return !event_ || event_->query();
  }

 private:
  enum class Stage { queued, taken_in, under_way };
  NcclGroup& group_;
  std::uint64_t ticket_;
  Step enqueue_;
  LastStep enqueued_;
  const Event* event_ = nullptr;
  Stage stage_ = Stage::queued;
};

std::size_t NcclGroupOptions::slice_bytes() const {
  return slice_range({0, align_up(chunk_bytes)}, 0, slices).bytes;
}

NcclGroup::NcclGroup(const NcclGroupOptions& options, const CudaFunctions& cuda,
                     const NcclFunctions& nccl, NcclCommunicator& communicator, DeviceWatch& watch)
    : options_(options),
      cuda_(cuda),
      nccl_(nccl),
      communicator_(communicator),
      watch_(watch),
      collectives_(cuda, kUrgentPriority),
      trace_(options.trace, cuda, options.device) {
  if (options_.slots == 0) return;
  const std::size_t slice = options_.slice_bytes();
  for (std::size_t i = 0; i < options_.slots; ++i) {
    chunks_.emplace_back(cuda_, static_cast<std::size_t>(options_.slices) * slice);
  }
  if (options_.device_staging) {
    staging_ = std::make_unique<DeviceStaging>(cuda_, options_.slots);
  } else {
    staging_ = std::make_unique<PinnedStaging>(cuda_, options_.slots, slice, trace_);
  }
}

Completion NcclGroup::launch(Step enqueue, LastStep enqueued) {
  return Completion(std::make_unique<Launch>(*this, std::move(enqueue), std::move(enqueued)));
}

std::byte* NcclGroup::staging(std::size_t index, std::size_t) {
  return staging_->data(index);
}

void NcclGroup::trace_begin(const ChunkPart& part, std::string_view phase) {
  const UnitKey unit = options_.trace.unit(part.unit.number);
  trace_.begin(collectives_.get(), {kCollectivesRow, phase, unit, part.chunk.bytes});
}

StagedSlice NcclGroup::my_slice(const ChunkPart& part) {
  const UnitKey unit = options_.trace.unit(part.unit.number);
  if (part.slice.bytes == 0) return {part.slot, {}, unit};
  std::byte* const data = chunks_[part.slot].data() + (part.slice.begin - part.chunk.begin);
  return {part.slot, {data, part.slice.bytes}, unit};
}

Completion NcclGroup::run(const BoundUnit& unit) {
  const auto enqueue = [this, &unit] {
    const nvtx3::scoped_range range("hora collective in the node", nvtx3::payload{unit.unit.bytes});
    cudaStream_t const stream = collectives_.get();
    for (const auto& work : unit.work) work->wait_ready(stream);
    trace_.begin(stream, {kCollectivesRow, name_of(unit.unit.kind),
                          options_.trace.unit(unit.number), unit.unit.bytes});
    const auto type = type_of(unit.unit);
    NcclCallGroup calls(nccl_);
    for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
      std::byte* const data = unit.tensor(i, options_.local_rank);
      const std::size_t count = unit.unit.tensors[i].range.bytes / size_of(unit.unit.type);
      if (count == 0) continue;
      if (unit.unit.kind == OperationKind::broadcast) {
        nccl_check(
            nccl_,
            nccl_.broadcast(data, data, count, type, unit.root_local, communicator_.get(), stream),
            "ncclBroadcast");
      } else {
        nccl_check(nccl_,
                   nccl_.all_reduce(data, data, count, type, reduction_of(unit),
                                    communicator_.get(), stream),
                   "ncclAllReduce");
      }
    }
    calls.end();
  };
  const auto enqueued = [this, &unit]() -> const Event* {
    trace_.end(collectives_.get());
    for (const auto& work : unit.work) work->record_done(collectives_.get());
    watch_.add(collectives_.get());
    return nullptr;
  };
  return launch(enqueue, enqueued);
}

Completion NcclGroup::reduce_scatter(const ChunkPart& part) {
  if (!part.has_input) {
    return launch([] {}, [this, part] { return &staging_->make_room(my_slice(part)); });
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
    trace_.end(collectives_.get());
    const Event& out = staging_->take_out(my_slice(part), collectives_.get());
    watch_.add(collectives_.get());
    return &out;
  };
  return launch(enqueue, enqueued);
}

Completion NcclGroup::all_gather(const ChunkPart& part) {
  const auto enqueue = [this, part] {
    const nvtx3::scoped_range range("hora all-gather", nvtx3::payload{part.chunk.bytes});
    staging_->bring_in(my_slice(part), collectives_.get());
    trace_begin(part, "all_gather");
    gather(part);
  };
  const auto enqueued = [this, part]() -> const Event* {
    if (!part.has_input) await_tensors(part);
    trace_begin(part, "unpack");
    copy_tensors(part, /*out_of_tensors=*/false);
    trace_.end(collectives_.get());
    staging_->leave(part.slot, collectives_.get());
    const bool is_last = part.chunk.begin + part.chunk.bytes == part.unit.unit.bytes;
    if (is_last) {
      for (const auto& work : part.unit.work) work->record_done(collectives_.get());
    }
    watch_.add(collectives_.get());
    return nullptr;
  };
  return launch(enqueue, enqueued);
}

/// Before the collectives' stream touches the unit's tensors; once for all its chunks.
void NcclGroup::await_tensors(const ChunkPart& part) {
  if (part.chunk.begin > 0) return;
  for (const auto& work : part.unit.work) work->wait_ready(collectives_.get());
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
  std::vector<CopyPiece> pieces;
  for (const Run& run : runs(unit, part.chunk)) {
    std::byte* const tensor = part.unit.tensor(run.tensor, options_.local_rank) + run.range.begin;
    const auto elements = static_cast<std::int64_t>(run.range.bytes / size_of(unit.type));
    std::byte* const packed = chunk + run.offset;
    pieces.push_back(out_of_tensors ? CopyPiece{tensor, packed, elements}
                                    : CopyPiece{packed, tensor, elements});
  }
  if (pieces.empty()) return;
  const BatchedCopy copy{.pieces = pieces, .source_type = unit.type, .target_type = unit.type};
  cuda_check(cuda_, cuda_.batched_copy(copy, collectives_.get()), "the kernel batched_copy");
}

void NcclGroup::scatter(const ChunkPart& part) {
  const Slices slices(part, chunks_[part.slot].data());
  ncclComm_t const comm = communicator_.get();
  cudaStream_t const stream = collectives_.get();
  NcclCallGroup calls(nccl_);
  if (part.unit.unit.kind == OperationKind::broadcast) {
    nccl_check(nccl_,
               nccl_.broadcast(slices.chunk, slices.chunk,
                               slices.count * static_cast<std::size_t>(part.slices), slices.type,
                               part.unit.root_local, comm, stream),
               "ncclBroadcast");
  } else if (part.slices == options_.local_size) {
    nccl_check(nccl_,
               nccl_.reduce_scatter(slices.chunk, slices.at(options_.local_rank), slices.count,
                                    slices.type, ncclSum, comm, stream),
               "ncclReduceScatter");
  } else {
    for (int s = 0; s < part.slices; ++s) {
      nccl_check(nccl_,
                 nccl_.reduce(slices.at(s), slices.at(s), slices.count, slices.type, ncclSum, s,
                              comm, stream),
                 "ncclReduce");
    }
  }
  calls.end();
}

void NcclGroup::gather(const ChunkPart& part) {
  const Slices slices(part, chunks_[part.slot].data());
  ncclComm_t const comm = communicator_.get();
  cudaStream_t const stream = collectives_.get();
  NcclCallGroup calls(nccl_);
  if (part.slices == options_.local_size) {
    nccl_check(nccl_,
               nccl_.all_gather(slices.at(options_.local_rank), slices.chunk, slices.count,
                                slices.type, comm, stream),
               "ncclAllGather");
  } else {
    for (int s = 0; s < part.slices; ++s) {
      nccl_check(
          nccl_,
          nccl_.broadcast(slices.at(s), slices.at(s), slices.count, slices.type, s, comm, stream),
          "ncclBroadcast");
    }
  }
  calls.end();
}

}  // namespace hora
