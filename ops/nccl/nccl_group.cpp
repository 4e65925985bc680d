#include "ops/nccl/nccl_group.h"

#include <nvtx3/nvtx3.hpp>
#include <utility>

#include "ops/cuda/check.h"
#include "ops/cuda/device_guard.h"
#include "ops/nccl/check.h"

namespace hora {
namespace {

/// Before the application's kernels that wait for a place on the device.
constexpr int kUrgent = -1;

/// Rows of the timeline.
constexpr std::string_view kCollectivesRow = "GPU: collectives";
constexpr std::string_view kDownloadRow = "GPU: download";
constexpr std::string_view kUploadRow = "GPU: upload";

/// A chunk in its slot as NCCL sees it: slices of equal length, the last ones' padding included.
struct Slices {
  Slices(const ChunkPart& part, std::byte* memory)
      : chunk(memory),
        length(slice_range(part.chunk, 0, part.slices).bytes),
        count(length / size_of(part.unit.unit.type)),
        type(to_nccl(part.unit.unit.type)) {}
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
  Launch(NcclGroup& group, Step enqueue, Step enqueued, const Event* event)
      : group_(group),
        ticket_(group.next_launch_++),
        enqueue_(std::move(enqueue)),
        enqueued_(std::move(enqueued)),
        event_(event) {}

  bool poll() override {
    if (stage_ == Stage::queued && group_.launched_ != ticket_) return false;
    const DeviceGuard device(group_.cuda_, group_.options_.device);
    if (stage_ == Stage::queued) {
      enqueue_();
      stage_ = Stage::taken_in;
    }
    if (stage_ == Stage::taken_in) {
      if (!group_.communicator_.ready()) return false;
      enqueued_();
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
  Step enqueued_;
  const Event* event_;
  Stage stage_ = Stage::queued;
};

NcclGroup::NcclGroup(const NcclGroupOptions& options, const CudaFunctions& cuda,
                     const NcclFunctions& nccl, NcclCommunicator& communicator, DeviceWatch& watch)
    : options_(options),
      cuda_(cuda),
      nccl_(nccl),
      communicator_(communicator),
      watch_(watch),
      collectives_(cuda, kUrgent),
      download_(cuda, kUrgent),
      upload_(cuda, kUrgent),
      trace_(options.trace, cuda, options.device) {
  const auto slices = static_cast<std::size_t>(options_.slices);
  const std::size_t slice = align_up((align_up(options_.chunk_bytes) + slices - 1) / slices);
  for (std::size_t i = 0; i < options_.slots; ++i) {
    slots_.push_back({DeviceMemory(cuda_, slices * slice), PinnedMemory(cuda_, slice), Event(cuda_),
                      Event(cuda_), Event(cuda_), Event(cuda_)});
  }
}

Completion NcclGroup::launch(Step enqueue, Step enqueued, const Event* event) {
  return Completion(
      std::make_unique<Launch>(*this, std::move(enqueue), std::move(enqueued), event));
}

std::byte* NcclGroup::staging(std::size_t index, std::size_t) {
  return slots_[index].staging.data();
}

void NcclGroup::trace_begin(const Stream& stream, const ChunkPart& part, std::string_view row,
                            std::string_view phase) {
  trace_.begin(stream.get(), {row, phase, part.unit.number, part.chunk.bytes});
}

std::byte* NcclGroup::my_slice(const ChunkPart& part) {
  return slots_[part.slot].chunk.data() + (part.slice.begin - part.chunk.begin);
}

Completion NcclGroup::run(const BoundUnit& unit) {
  const auto enqueue = [this, &unit] {
    const nvtx3::scoped_range range("hora collective in the node", nvtx3::payload{unit.unit.bytes});
    cudaStream_t const stream = collectives_.get();
    for (const auto& work : unit.work) work->wait_ready(stream);
    trace_.begin(stream, {kCollectivesRow, name_of(unit.unit.kind), unit.number, unit.unit.bytes});
    const auto type = to_nccl(unit.unit.type);
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
  const auto enqueued = [this, &unit] {
    trace_.end(collectives_.get());
    for (const auto& work : unit.work) work->record_done(collectives_.get());
    watch_.add(collectives_.get());
  };
  return launch(enqueue, enqueued);
}

Completion NcclGroup::reduce_scatter(const ChunkPart& part) {
  Slot& own = slots_[part.slot];
  if (!part.has_input) {
    // The network writes into staging next: the last upload must have read it.
    return launch([] {}, [] {}, &own.uploaded);
  }
  const auto enqueue = [this, part] {
    const nvtx3::scoped_range range("hora reduce-scatter", nvtx3::payload{part.chunk.bytes});
    await_tensors(part);
    trace_begin(collectives_, part, kCollectivesRow, "pack");
    copy_tensors(part, /*out_of_tensors=*/true);
    trace_begin(collectives_, part, kCollectivesRow, "reduce_scatter");
    scatter(part);
  };
  const auto enqueued = [this, part, &own] {
    trace_.end(collectives_.get());
    own.scattered.record(collectives_.get());
    wait(download_.get(), own.scattered);
    wait(download_.get(), own.uploaded);
    trace_begin(download_, part, kDownloadRow, "download");
    if (part.slice.bytes > 0) {
      cuda_check(cuda_,
                 cuda_.memcpy_async(own.staging.data(), my_slice(part), part.slice.bytes,
                                    cudaMemcpyDeviceToHost, download_.get()),
                 "cudaMemcpyAsync from the device");
    }
    trace_.end(download_.get());
    own.downloaded.record(download_.get());
    watch_.add(collectives_.get());
  };
  return launch(enqueue, enqueued, &own.downloaded);
}

Completion NcclGroup::all_gather(const ChunkPart& part) {
  Slot& own = slots_[part.slot];
  const auto enqueue = [this, part, &own] {
    const nvtx3::scoped_range range("hora all-gather", nvtx3::payload{part.chunk.bytes});
    wait(upload_.get(), own.spread);
    trace_begin(upload_, part, kUploadRow, "upload");
    if (part.slice.bytes > 0) {
      cuda_check(cuda_,
                 cuda_.memcpy_async(my_slice(part), own.staging.data(), part.slice.bytes,
                                    cudaMemcpyHostToDevice, upload_.get()),
                 "cudaMemcpyAsync to the device");
    }
    trace_.end(upload_.get());
    own.uploaded.record(upload_.get());
    wait(collectives_.get(), own.uploaded);
    trace_begin(collectives_, part, kCollectivesRow, "all_gather");
    gather(part);
  };
  const auto enqueued = [this, part, &own] {
    if (!part.has_input) await_tensors(part);
    trace_begin(collectives_, part, kCollectivesRow, "unpack");
    copy_tensors(part, /*out_of_tensors=*/false);
    trace_.end(collectives_.get());
    own.spread.record(collectives_.get());
    const bool is_last = part.chunk.begin + part.chunk.bytes == part.unit.unit.bytes;
    if (is_last) {
      for (const auto& work : part.unit.work) work->record_done(collectives_.get());
    }
    watch_.add(collectives_.get());
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
  std::byte* const chunk = slots_[part.slot].chunk.data();
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
  const Slices slices(part, slots_[part.slot].chunk.data());
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
  const Slices slices(part, slots_[part.slot].chunk.data());
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
