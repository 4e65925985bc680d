/// This process's GPU, which all its process sets share: memory for buffers, the order with
/// callers' streams, the detection of failures; and the launches of a process set on NCCL's stream,
/// and their order (launches.cpp). LocalGroup on the GPUs of a node, by NCCL; the transfer of this
/// rank's slice of a chunk from the GPU to the cross group and back, or the cross group on slices
/// that stay in GPU memory; and what of all that a process set has (nccl_group.cpp).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/control_block/node_progress.h"
#include "core/engine/interfaces.h"
#include "core/engine/operations.h"
#include "core/plan/plan.h"
#include "ops/cross/cross_group.h"
#include "ops/cross/point_to_point.h"
#include "ops/cuda/stream.h"
#include "ops/hierarchy/groups.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/functions.h"

namespace hora::internal {

/// Detects that collectives on the device have failed: their events are late, or the communicator
/// reports an error. Thread rule: the thread that holds the engine's lock.
class DeviceWatch {
 public:
  using Time = std::chrono::nanoseconds;
  using Clock = Time (*)();
  /// `limit`: how long something may be under way; 0: without limit.
  DeviceWatch(const CudaFunctions& cuda, int index, const NcclCommunicators& communicators,
              EventPool& events, Time limit, Clock clock)
      : cuda_(cuda),
        index_(index),
        communicators_(communicators),
        events_(events),
        limit_(limit),
        clock_(clock) {}

  /// `stream`, always the same one, has been given a collective.
  void add(cudaStream_t stream);
  /// True while anything is under way. Throws Error(transport); a PeerFailure where it is late.
  bool check();
  Time time() const { return clock_(); }
  /// Something waits for other ranks, since the first call with this `since`. Throws PeerFailure
  /// where that is too long. Returns false.
  bool keep_waiting(std::optional<Time>& since) const;

 private:
  struct PendingEvent {
    std::shared_ptr<Event> event;
    Time since;
  };
  bool is_too_long(Time waited) const { return limit_.count() > 0 && waited > limit_; }

  const CudaFunctions& cuda_;
  int index_;
  const NcclCommunicators& communicators_;
  EventPool& events_;
  Time limit_;
  Clock clock_;
  Time next_look_{};
  std::deque<PendingEvent>
      pending_;  ///< at most two: the oldest, and one that moves on with the stream
};

/// Thread rule: as DevicePort.
class NcclDevice final : public DevicePort {
 public:
  /// References outlive it.
  NcclDevice(const CudaFunctions& cuda, const NcclFunctions& nccl, int index, cudaStream_t stream,
             NcclCommunicators& communicators, NcclBuffers& buffers, EventPool& events,
             DeviceWatch& watch)
      : cuda_(cuda),
        nccl_(nccl),
        index_(index),
        stream_(stream),
        communicators_(communicators),
        buffers_(buffers),
        events_(events),
        watch_(watch) {}

  /// After end(). Frees buffers that were not released, as an exception leaves them; after a
  /// failure they stay: peers may still write to them.
  ~NcclDevice() override;
  NcclDevice(const NcclDevice&) = delete;
  NcclDevice& operator=(const NcclDevice&) = delete;

  BegunOnDevice begin(const std::byte* data, void* stream,
                      std::optional<void*> output_stream) override;
  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data, const WithEngineLock& locked) noexcept override;
  bool check() override;
  void abort() noexcept override;
  /// All ranks have done all their collectives, but for what their GPUs still run: closes all
  /// communicators. Collective. Throws Error(transport) where that is not done by the deadline.
  void close(NcclCommunicator::Deadline deadline);
  /// Ends what NCCL has under way, whether or not peers come: no collective is waited for any more.
  void end() noexcept;

 private:
  void wait_for_device(const WithEngineLock& locked);
  std::optional<RegisteredMemory> take(std::byte* data, const WithEngineLock& locked);

  const CudaFunctions& cuda_;
  const NcclFunctions& nccl_;
  int index_;
  cudaStream_t stream_;  ///< of collectives
  NcclCommunicators& communicators_;
  NcclBuffers& buffers_;
  EventPool& events_;
  DeviceWatch& watch_;
  bool failed_ = false;
};

/// Collectives of all sets run on one stream, so that a GPU does them in the order in which it got
/// them. Thread rules: the parts'.
struct NcclContext {
  /// `events`: that many are made at once; `timeout`: see DeviceWatch. The tables outlive it.
  NcclContext(const CudaFunctions& cuda_functions, const NcclFunctions& nccl_functions, int index,
              std::size_t event_count, DeviceWatch::Time timeout)
      : cuda(cuda_functions),
        nccl(nccl_functions),
        device(index),
        events(cuda, event_count),
        stream(cuda, kUrgentPriority),
        watch(cuda, device, communicators, events, timeout, now),
        port(cuda, nccl, device, stream.get(), communicators, buffers, events, watch),
        heap(cuda, device, events, stream.get()),
        identity(cuda, stream, heap) {}

  const CudaFunctions& cuda;
  const NcclFunctions& nccl;
  int device;
  NcclCommunicators communicators;
  EventPool events;
  CudaStream stream;
  DeviceWatch watch;
  NcclBuffers buffers;
  NcclDevice port;
  StreamHeap heap;
  IdentityElements identity;
};

/// Launches begin in the order in which they are made, each when the communicator has accepted the
/// one before (it never blocks), and in a turn among the process sets where it is said to take one.
/// Thread rule: the thread that holds the engine's lock; outlives the completions.
class NcclLaunches {
 public:
  using Step = std::function<void()>;
  using LastStep = std::function<const Event*()>;

  /// How the communicator is made, if it is not there yet: as the first launch, in a turn.
  struct Connection {
    Step announce;  ///< before the turn is asked for
    Step begin;
  };

  /// References outlive it.
  NcclLaunches(NcclContext& context, NcclCommunicator& communicator, LaunchTicketLock ticket_lock,
               Connection connection = {})
      : context_(context),
        communicator_(communicator),
        ticket_lock_(ticket_lock),
        connection_(std::move(connection)) {}

  /// `enqueue` calls NCCL; `enqueued` follows once NCCL has accepted that; then the event that it
  /// returns, if any, is waited for. Both with the device as the current one.
  Completion launch(bool takes_turn, Step enqueue, LastStep enqueued);
  /// Watches what was put on the stream so far: see DeviceWatch.
  void watch() { context_.watch.add(stream()); }

  NcclContext& context() const { return context_; }
  const CudaFunctions& cuda() const { return context_.cuda; }
  const NcclFunctions& nccl() const { return context_.nccl; }
  ncclComm_t communicator() const { return communicator_.get(); }
  void name_background(std::string_view what) { communicator_.name_background(what); }
  cudaStream_t stream() const { return context_.stream.get(); }
  /// One of NCCL's calls, without its last arguments: on the communicator, for the stream.
  template <class Function, class... Arguments>
  void call(Function NcclFunctions::*function, std::string_view name, Arguments... arguments) {
    nccl_check(nccl(), (nccl().*function)(arguments..., communicator(), stream()), name);
  }
  /// The pieces as `copy` says, which has none.
  void copy(std::span<const CopyPiece> pieces, BatchedCopy copy) const;

 private:
  class Launch;

  bool is_next(std::uint64_t ticket);

  NcclContext& context_;
  NcclCommunicator& communicator_;
  LaunchTicketLock ticket_lock_;
  Connection connection_;
  Completion connecting_;
  std::uint64_t next_ = 0;  ///< tickets
  std::uint64_t launched_ = 0;
};

struct StagedSlice {
  std::size_t slot = 0;
  std::span<std::byte> memory;  ///< the device's, in the slot's chunk; empty where it owns none
  UnitKey unit = {};            ///< whose it is
};

/// The slices of a group's slots. `stream` is the one that NCCL runs on. Nothing blocks the host.
/// Thread rule: as LocalGroup; the device is current.
class SliceStaging {
 public:
  virtual ~SliceStaging() = default;
  /// The cross group's memory, from the slot's take_out() or make_room() on.
  virtual std::byte* data(std::size_t slot) const = 0;
  /// The slice is complete once `stream` has done what it was given so far. When the event is
  /// reached the cross group may begin.
  virtual const Event& take_out(const StagedSlice& slice, cudaStream_t stream) = 0;
  /// The slice comes from the network alone, which may begin when the event is reached.
  virtual const Event& make_room(const StagedSlice& slice) = 0;
  /// The cross group is done: what `stream` is given from now on finds its result in the slice.
  virtual void bring_in(const StagedSlice& slice, cudaStream_t stream) = 0;
  /// `stream` has been given the last operation that reads the slot's chunk.
  virtual void leave(std::size_t slot, cudaStream_t stream) = 0;
};

/// Over pinned host memory, by copies on two streams of their own:
///
///   download stream:  slice -> staging
///   upload stream:                      staging -> slice
class PinnedStaging final : public SliceStaging {
 public:
  /// `bytes`: of the longest slice. The trace outlives it. Throws Error(out_of_memory).
  PinnedStaging(const CudaFunctions& cuda, std::size_t slots, std::size_t bytes,
                DeviceTrace& trace);

  std::byte* data(std::size_t slot) const override { return slots_[slot].memory.data(); }
  const Event& take_out(const StagedSlice& slice, cudaStream_t stream) override;
  const Event& make_room(const StagedSlice& slice) override;
  void bring_in(const StagedSlice& slice, cudaStream_t stream) override;
  void leave(std::size_t slot, cudaStream_t stream) override;

 private:
  struct PinnedSlot {
    PinnedMemory memory;
    Event complete;    ///< the slice, on NCCL's stream
    Event downloaded;  ///< memory has been written
    Event uploaded;    ///< memory has been read
    Event left;        ///< the chunk has been read
  };
  const CudaFunctions& cuda_;
  DeviceTrace& trace_;
  CudaStream download_;
  CudaStream upload_;
  std::vector<PinnedSlot> slots_;
};

/// The slice itself, for MPI that takes the GPU's memory. MPI knows no streams: it may read or
/// write only between an event that the engine has seen reached and the launch of what comes next.
class DeviceStaging final : public SliceStaging {
 public:
  DeviceStaging(const CudaFunctions& cuda, std::size_t slots);

  std::byte* data(std::size_t slot) const override { return slots_[slot].slice; }
  const Event& take_out(const StagedSlice& slice, cudaStream_t stream) override;
  const Event& make_room(const StagedSlice& slice) override;
  void bring_in(const StagedSlice&, cudaStream_t) override {}
  void leave(std::size_t slot, cudaStream_t stream) override;

 private:
  struct DeviceSlot {
    std::byte* slice = nullptr;
    Event complete;
    Event left;
  };
  std::vector<DeviceSlot> slots_;
};

/// Place in a communicator of all ranks of a set, whatever their nodes.
struct PlaceInSet {
  int rank = 0;  ///< this one's place among them
  int ranks = 1;
};

struct NcclGroupOptions {
  int device = 0;
  int local_rank = 0;
  int local_size = 1;
  /// The communicator spans nodes, and units run whole; none: its ranks are the local ones.
  std::optional<PlaceInSet> over_nodes = {};
  int slices = 1;               ///< as the pipeline cuts a chunk
  std::size_t slots = 0;        ///< likewise; 0 where units run whole
  std::size_t chunk_bytes = 0;  ///< of the longest chunk
  int most_ctas = 0;            ///< of NCCL's kernels (HORA_NCCL_CTAS); 0: as NCCL chooses
  /// The cross group takes the GPU's memory.
  bool device_staging = false;
  bool allocates_at_once = true;  ///< not at the first chunk
  bool windows = false;  ///< of the world's, all of whose ranks are in one node: see NcclBuffers
  Tracer trace = {};

  /// Bytes of the longest slice.
  std::size_t slice_bytes() const;
  PlaceInSet place() const { return over_nodes.value_or(PlaceInSet{local_rank, local_size}); }
};

/// One node, or a communicator that spans nodes: one all-reduce in place for each tensor of a unit,
/// by run(). Several nodes else, for each chunk:
///
///   collectives' stream:  pack -> reduce-scatter                     all-gather -> unpack
///   SliceStaging:                             slice out ..  .. in
///   engine:                                           the cross group
///
/// Before NCCL values are prepared (communicator.h), in place or as they are packed; the final
/// scale is applied in place, or by the cross group. NCCL is not called for a rank that is alone in
/// its communicator: in place, what it would give is there. A rank that has joined has identity
/// elements in the place of tensors, and copies of those that are apart (WindowPlan). The streams
/// are ordered by events; the host waits, by polling, for the one alone that lets the cross group
/// begin. Thread rule: the thread that holds the engine's lock.
class NcclGroup final : public LocalGroup {
 public:
  /// The launches, whose communicator's ranks are those of the options' place(), outlive it. Throws
  /// Error(out_of_memory).
  NcclGroup(const NcclGroupOptions& options, NcclLaunches& launches);

  bool is_collective() const override { return true; }
  std::byte* staging(const ChunkPart& part) override;
  Completion run(const BoundUnit& unit) override;
  Completion reduce_scatter(const ChunkPart& part) override;
  Completion all_gather(const ChunkPart& part) override;

 private:
  bool is_alone() const { return options_.place().ranks == 1; }
  void allocate();
  void trace_begin(const ChunkPart& part, std::string_view phase);
  StagedSlice own_slice(const ChunkPart& part);
  void await_tensors(const ChunkPart& part);
  void copy_tensors(const ChunkPart& part, bool out_of_tensors);
  void prepare(const BoundUnit& unit, const WindowPlan& plan);
  void pass_over_tensors(const BoundUnit& unit, const std::vector<bool>& left_out,
                         BatchedCopy copy);
  std::shared_ptr<std::byte> joined_proxy(const BoundUnit& unit);
  Completion change(const WindowPlan& plan, bool takes_turn);
  void copy_apart(const BoundUnit& unit, const WindowPlan& plan, bool out_of_tensors);
  void call_in_place(const BoundUnit& unit, const WindowPlan& plan);
  void scatter(const ChunkPart& part);
  void gather(const ChunkPart& part);

  NcclGroupOptions options_;
  NcclLaunches& launches_;
  DeviceTrace trace_;
  std::vector<DeviceMemory> chunks_;  ///< by slot: a whole chunk, its slices of equal length
  std::unique_ptr<SliceStaging> staging_;
  /// Stands for tensors of the launch under way, one after the other. NCCL may put the collective
  /// on the stream only when it has accepted it.
  std::shared_ptr<std::byte> proxy_;
};

/// Straight from the inputs into the results: an allgather and a reduce-scatter whose parts are all
/// of one length by NCCL's own, others by a broadcast or a reduce for each part, an alltoall by
/// sends and receives, all in one group. Inputs stay as they are: where values must be prepared
/// (communicator.h), a copy of them is, which also stands for an input in a window (NcclBuffers)
/// whose result lies in one: other ranks' may lie elsewhere. Thread rule: the thread that holds the
/// engine's lock.
class NcclExchange final : public ExchangeGroup {
 public:
  /// `place`: among the ranks of the launches' communicator, which are those of the set. References
  /// outlive it.
  NcclExchange(int local_rank, PlaceInSet place, NcclLaunches& launches, DeviceHeap& heap);

  /// Memory for the result is taken as soon as extents are known. Nothing is launched before every
  /// rank has said whether it has that memory: where one lacks it, this exchange alone fails, on
  /// every rank with the same Error(out_of_memory).
  Completion run(const BoundUnit& unit, ExchangeAgreement& agreement) override;

 private:
  struct Work;
  class Run;

  bool take_memory(Work& work, const ExchangeExtents& extents);
  void refuse(const Work& work, const ExchangeExtents& extents, int lacking) const;
  Completion launch(const std::shared_ptr<Work>& work);
  void enqueue(Work& work);
  void gather(const Work& work);
  void send_and_receive(const Work& work);
  void prepare(const Work& work);
  std::size_t input_bytes(const Work& work) const;
  void reduce(const Work& work);
  void scale(const Work& work);
  void copy(const BatchedCopy& kind, const std::byte* source, std::byte* target, std::size_t bytes);

  int local_rank_;
  int rank_;           ///< of the communicator
  Topology topology_;  ///< its ranks, as of one node
  NcclLaunches& launches_;
  DeviceHeap& heap_;
};

/// The world's communicator is made at start-up, by connect(). That of another set is made with its
/// first collective on GPUs, from an id that the leader of its ranks of this node leaves in their
/// shared memory; so is its memory for chunks.
/// Thread rule: the thread that holds the engine's lock.
class NcclSet {
 public:
  enum class Connects : std::uint8_t { at_start, when_used };

  /// The world's comes first. The context outlives it.
  NcclSet(NcclContext& context, NcclGroupOptions options, LaunchTicketLock ticket_lock,
          Connects connects);
  /// Aborts before memory is freed: freeing waits for collectives that may never complete.
  ~NcclSet();
  NcclSet(const NcclSet&) = delete;
  NcclSet& operator=(const NcclSet&) = delete;

  /// Begins to make the communicator of the world. Throws Error(transport).
  void connect(const ncclUniqueId& id);
  NcclCommunicator& communicator() { return communicator_; }
  LocalGroup& group() { return group_; }
  ExchangeGroup& exchange() { return exchange_; }
  /// The set is removed: see NcclCommunicators::retire.
  void disconnect();

 private:
  NcclLaunches::Connection connection(LaunchTicketLock ticket_lock);

  NcclContext& context_;
  NcclGroupOptions options_;
  NcclCommunicator& communicator_;
  NcclLaunches launches_;
  NcclGroup group_;
  NcclExchange exchange_;
};

/// Sums run on a stream of their own and end by an event that is polled; the host never waits.
/// Memory comes from cudaMalloc, for MPI libraries cannot share that of ncclMemAlloc between
/// processes. Thread rule: as StagingSpace.
class DeviceSpace final : public StagingSpace {
 public:
  /// References outlive it.
  DeviceSpace(const CudaFunctions& cuda, int device, EventPool& events);

  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, std::size_t count) override;
  Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                     std::size_t count) override;

 private:
  Completion reached();

  const CudaFunctions& cuda_;
  int device_;
  EventPool& events_;
  CudaStream stream_;
  std::map<std::byte*, DeviceMemory> blocks_;
};

/// Makes the device the calling thread's current one before each call, and leaves it so: MPI's
/// copies of GPU memory go to the thread's current device (Open MPI's issue 627), also those that
/// it makes while the same thread asks for other messages. Thread rule: as PointToPoint.
class DeviceLink final : public PointToPoint {
 public:
  /// References outlive it.
  DeviceLink(const CudaFunctions& cuda, int device, PointToPoint& link)
      : PointToPoint(link.index(), link.size()), cuda_(cuda), device_(device), link_(link) {}

  Request send(int to, int tag, std::span<const std::byte> bytes) override;
  Request receive(int from, int tag, std::span<std::byte> bytes) override;
  bool test(Request request) override;
  bool cancel(Request receive) override;

 private:
  const CudaFunctions& cuda_;
  int device_;
  PointToPoint& link_;
};

/// The cross group of slices that stay in GPU memory, with what it is made of. Takes all its memory
/// when it is made. Thread rule: as CrossGroup.
class DeviceCross {
 public:
  /// `local`: the options of the NcclGroup beside it. References outlive it; `link` takes memory of
  /// the GPU.
  DeviceCross(const CudaFunctions& cuda, EventPool& events, const NcclGroupOptions& local,
              PointToPoint& link, const CrossOptions& options)
      : space_(cuda, local.device, events),
        link_(cuda, local.device, link),
        group_(link_, options, space_) {
    group_.reserve(local.slots, local.slice_bytes());
  }

  CrossGroup& group() { return group_; }

 private:
  DeviceSpace space_;
  DeviceLink link_;
  MessageCrossGroup group_;
};

}  // namespace hora::internal
