/// A world of ranks as threads, each with a fake GPU, on the real engine and pipeline.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/api/results.h"
#include "core/engine/engine.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/nccl_group.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/message_network.h"
#include "tests/support/threads/thread_world.h"

namespace hora::internal::test {

struct GpuWorldOptions {
  std::vector<int> node_sizes = {1};
  Settings settings = {};
  FakeGpuOptions gpu = {};
  bool engines = true;
  /// Between nodes: from GPU memory, by the real algorithms of the cross group; else over pinned
  /// memory, by the thread world's own.
  bool device_staging = false;
  /// Between nodes: one communicator over all ranks, as HORA_GPU_NETWORK=nccl.
  bool by_nccl = false;
  /// By rank; empty: no timelines. They outlive the world.
  std::function<Tracer(int)> trace = {};
};

/// Thread rule: rank r's members by one thread each; construction and destruction by one thread.
class GpuWorld {
 public:
  explicit GpuWorld(const GpuWorldOptions& options);
  ~GpuWorld();

  int size() const { return world_->size(); }
  int nodes() const { return static_cast<int>(ticket_lock_.size()); }
  /// The world's communicator is of several nodes.
  bool spans_nodes() const { return options_.by_nccl && nodes() > 1; }
  Engine& engine(int rank) { return world_->engine(rank); }
  EngineParts parts(int rank) { return world_->parts(rank); }
  FakeGpu& gpu(int rank) { return *gpus_[static_cast<std::size_t>(rank)]; }
  DevicePort& port(int rank);
  DeviceHeap& heap(int rank);
  /// Complaints of NCCL's world and GPUs, contexts on other ranks' GPUs among them, whether ranks
  /// have ended or not; none after a right program.
  std::vector<std::string> complaints() const;
  /// Messages from or to memory that is not the sender's or receiver's GPU's.
  int misplaced_messages() const { return misplaced_.load(); }
  std::int64_t messages() const { return messages_.load(); }
  /// Runs `body(rank)` on a thread for each rank.
  void on_all_ranks(const std::function<void(int)>& body);
  /// Ends the ranks, not their GPUs.
  void end();
  /// Those on whose GPU something is left, when what goes in the order of streams has had some
  /// seconds to go; after end().
  std::vector<int> ranks_with_leftovers() const;

 private:
  struct Rank;
  /// A group's options, the world's or a set's.
  NcclGroupOptions group_options(int rank, int local_rank, int local_size, int nodes,
                                 int slices) const;
  void connect_nodes(int slices);
  RankDevice join_set(int rank, const SetPlan& plan, const NodeControlBlock& control_block);

  GpuWorldOptions options_;
  std::vector<std::unique_ptr<LaunchTicketLockMemory>> ticket_lock_;  ///< by node
  std::atomic<int> misplaced_{0};
  std::atomic<std::int64_t> messages_{0};
  FakeNcclWorld nccl_;
  std::vector<std::unique_ptr<FakeGpu>> gpus_;
  std::vector<std::unique_ptr<MessageNetwork>> networks_;  ///< by slice
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<ThreadWorld> world_;
};

/// Values on a rank's GPU, with a stream of the "application" that fills and reads them.
class DeviceTensor {
 public:
  DeviceTensor(FakeGpu& gpu, DataType type, std::vector<std::byte> bytes);

  /// The upload goes on when this returns.
  void fill(const std::vector<std::byte>& bytes);
  std::byte* data() const { return device_.data(); }
  void* stream() const { return stream_.get(); }
  Signature signature(OperationKind kind, ReduceOp op, int root = 0) const;
  /// Returns the bytes there, in the stream's order.
  std::vector<std::byte> read();

 private:
  FakeGpu& gpu_;
  DataType type_;
  CudaStream stream_;
  DeviceMemory device_;
  PinnedMemory host_;
};

/// An exchange that has been submitted, with its result. Goes before its world.
struct PendingExchange {
  std::shared_ptr<Operation> operation;
  std::shared_ptr<ResultMemory> result;
};

/// Bytes of a row of an exchange: 10 float32.
constexpr std::size_t kRowBytes = 40;

/// As core/api asks engines for an exchange of rows of float32 on a GPU; sums are scaled. `rows`:
/// as Request::rows. The input outlives it.
PendingExchange submit_exchange(GpuWorld& world, int rank, OperationKind kind,
                                const std::vector<std::int64_t>& rows, const DeviceTensor& input);

}  // namespace hora::internal::test
