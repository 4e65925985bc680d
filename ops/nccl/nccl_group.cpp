#include "ops/nccl/nccl_group.h"

#include <nvtx3/nvtx3.hpp>
#include <utility>

#include "core/base/log.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/functions.h"
#include "ops/nccl/reduction.h"

namespace hora::internal {
namespace {

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
  launch_copy(pieces, {.pieces = {}, .source_type = u.type, .target_type = u.type});
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
  launch_copy(pieces, copy);
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
  const NcclFunctions& nccl = launches_.nccl();
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  const auto type = type_of(unit.unit);
  NcclCallGroup calls(nccl);
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const Range range = unit.unit.tensors[i].range;
    const bool in_proxy = unit.is_joined_proxy || plan.is_apart(i);
    std::byte* const data =
        in_proxy ? proxy_.get() + range.begin : unit.tensor(i, options_.local_rank);
    const std::size_t count = range.bytes / size_of(unit.unit.type);
    if (count == 0) continue;
    if (unit.unit.kind == OperationKind::broadcast) {
      nccl_check(nccl, nccl.broadcast(data, data, count, type, unit.root_index, comm, stream),
                 "ncclBroadcast");
    } else {
      const ncclRedOp_t op = plan.is_shared(i) ? ncclSum : to_nccl(unit.unit.op, unit.unit.type);
      nccl_check(nccl, nccl.all_reduce(data, data, count, type, op, comm, stream), "ncclAllReduce");
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
  launch_copy(pieces, out_of_tensors ? preparation(unit) : plain);
}

void NcclGroup::launch_copy(std::span<const CopyPiece> pieces, BatchedCopy copy) {
  if (pieces.empty()) return;
  copy.pieces = pieces;
  cuda_check(launches_.cuda(), launches_.cuda().batched_copy(copy, launches_.stream()),
             "the kernel batched_copy");
}

void NcclGroup::scatter(const ChunkPart& part) {
  if (is_alone()) return;
  const Slices slices(part, chunks_[part.slot].data());
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  const NcclFunctions& nccl = launches_.nccl();
  NcclCallGroup calls(nccl);
  if (part.unit.unit.kind == OperationKind::broadcast) {
    nccl_check(nccl,
               nccl.broadcast(slices.chunk, slices.chunk,
                              slices.count * static_cast<std::size_t>(part.slices), slices.type,
                              part.unit.root_local, comm, stream),
               "ncclBroadcast");
  } else if (part.slices == options_.local_size) {
    nccl_check(nccl,
               nccl.reduce_scatter(slices.chunk, slices.at(options_.local_rank), slices.count,
                                   slices.type, part_of(part.unit.unit), comm, stream),
               "ncclReduceScatter");
  } else {
    for (int s = 0; s < part.slices; ++s) {
      nccl_check(nccl,
                 nccl.reduce(slices.at(s), slices.at(s), slices.count, slices.type,
                             part_of(part.unit.unit), s, comm, stream),
                 "ncclReduce");
    }
  }
  calls.end();
}

void NcclGroup::gather(const ChunkPart& part) {
  if (is_alone()) return;
  const Slices slices(part, chunks_[part.slot].data());
  ncclComm_t const comm = launches_.communicator();
  cudaStream_t const stream = launches_.stream();
  const NcclFunctions& nccl = launches_.nccl();
  NcclCallGroup calls(nccl);
  if (part.slices == options_.local_size) {
    nccl_check(nccl,
               nccl.all_gather(slices.at(options_.local_rank), slices.chunk, slices.count,
                               slices.type, comm, stream),
               "ncclAllGather");
  } else {
    for (int s = 0; s < part.slices; ++s) {
      nccl_check(
          nccl,
          nccl.broadcast(slices.at(s), slices.at(s), slices.count, slices.type, s, comm, stream),
          "ncclBroadcast");
    }
  }
  calls.end();
}

}  // namespace hora::internal
