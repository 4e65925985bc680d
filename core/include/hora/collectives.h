/// Collectives on plain memory. Every rank of the process set must call each with the same name,
/// type, shape and options; the order of calls may differ. A TensorView is written to; a
/// ConstTensorView is only read.
///
///     std::vector<float> gradients(1000);
///     hora::allreduce(world, hora::view(gradients), {.name = "gradients"});       // their average
///     hora::Result all = hora::allgather(world, hora::view(gradients), {.name = "all"});
///
/// Errors, all hora::Error, and time limits: docs/failures.md, "Errors of collectives".
///
/// Reproducible to the bit: each element is summed in local rank order, then in node order, float16
/// and bfloat16 in float32 within a node and between nodes, rounded once each. On GPUs:
/// docs/gpu.md. Thread rule: any thread.
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/handle.h>
#include <hora/result.h>
#include <hora/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace HORA_EXPORT hora {

/// An empty name is the lowest unnamed slot of this kind of operation that is not in flight on this
/// rank: make and wait for unnamed calls in one order everywhere.
struct AllreduceOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::average;
  ProcessSet process_set = kWorld;
  /// Multiply each rank's values before, and the result after the reduction: floating-point types,
  /// not adasum.
  double prescale = 1.0;
  double postscale = 1.0;
  /// From submission to completion; 0: HORA_TIMEOUT; milliseconds::max(): none.
  std::chrono::milliseconds timeout{0};
};

struct BroadcastOptions {
  std::string name = {};
  int root = 0;  ///< world rank whose values all get
  ProcessSet process_set = kWorld;
  std::chrono::milliseconds timeout{0};  ///< as in AllreduceOptions
};

struct BarrierOptions {
  std::string name = {};
  ProcessSet process_set = kWorld;
  std::chrono::milliseconds timeout{0};  ///< as in AllreduceOptions
};

struct AllgatherOptions {
  std::string name = {};
  ProcessSet process_set = kWorld;
  std::chrono::milliseconds timeout{0};  ///< as in AllreduceOptions
};

struct AlltoallOptions {
  std::string name = {};
  /// Rows for each rank of the set, in its order; empty: evenly.
  std::vector<std::int64_t> splits = {};
  ProcessSet process_set = kWorld;
  std::chrono::milliseconds timeout{0};  ///< as in AllreduceOptions
};

struct ReduceScatterOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::average;
  ProcessSet process_set = kWorld;
  double prescale = 1.0;  ///< as in AllreduceOptions
  double postscale = 1.0;
  std::chrono::milliseconds timeout{0};  ///< as in AllreduceOptions
};

/// Replaces the values by their average, sum, ... over all ranks (ReduceOp).
void allreduce(const Context& context, const TensorView& tensor,
               const AllreduceOptions& options = {});
[[nodiscard]] Handle allreduce_async(const Context& context, const TensorView& tensor,
                                     const AllreduceOptions& options = {});

/// Replaces the values by the root's.
void broadcast(const Context& context, const TensorView& tensor,
               const BroadcastOptions& options = {});
[[nodiscard]] Handle broadcast_async(const Context& context, const TensorView& tensor,
                                     const BroadcastOptions& options = {});

/// Returns when every rank has called it.
void barrier(const Context& context, const BarrierOptions& options = {});
[[nodiscard]] Handle barrier_async(const Context& context, const BarrierOptions& options = {});

/// Returns the tensors of all ranks along the first dimension, which may differ by rank and be 0. A
/// scalar is one row.
Result allgather(const Context& context, const ConstTensorView& tensor,
                 const AllgatherOptions& options = {});
[[nodiscard]] ResultHandle allgather_async(const Context& context, const ConstTensorView& tensor,
                                           const AllgatherOptions& options = {});

/// Sends `splits[i]` rows, in order, to rank i of the set; returns the rows from each rank, in its
/// order.
Result alltoall(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options = {});
[[nodiscard]] ResultHandle alltoall_async(const Context& context, const ConstTensorView& tensor,
                                          const AlltoallOptions& options = {});

/// Returns this rank's rows of the reduced tensor, with allreduce's bits: n / size rows, of the
/// first n % size ranks one more.
Result reduce_scatter(const Context& context, const ConstTensorView& tensor,
                      const ReduceScatterOptions& options = {});
[[nodiscard]] ResultHandle reduce_scatter_async(const Context& context,
                                                const ConstTensorView& tensor,
                                                const ReduceScatterOptions& options = {});

/// The same three into the caller's `output`, as long as the result, of the input's type and
/// device, not overlapping it. It is hora's until wait() returns, unspecified after an error or a
/// dropped handle; the Result is a view of it. On a GPU wait() orders both views' streams. What
/// lies in a Buffer is written straight away; on the CPU other memory costs a copy.
///
///     std::vector<float> own(100), all(100 * world.size());
///     hora::allgather_into(world, hora::view(own), hora::view(all), {.name = "all"});
///
/// Throws Error(invalid_argument) at once for another type, device, null memory or a
/// reduce-scatter's length; for another length of the others wait() does, on this rank alone.
Result allgather_into(const Context& context, const ConstTensorView& tensor,
                      const TensorView& output, const AllgatherOptions& options = {});
[[nodiscard]] ResultHandle allgather_into_async(const Context& context,
                                                const ConstTensorView& tensor,
                                                const TensorView& output,
                                                const AllgatherOptions& options = {});
Result alltoall_into(const Context& context, const ConstTensorView& tensor,
                     const TensorView& output, const AlltoallOptions& options = {});
[[nodiscard]] ResultHandle alltoall_into_async(const Context& context,
                                               const ConstTensorView& tensor,
                                               const TensorView& output,
                                               const AlltoallOptions& options = {});
Result reduce_scatter_into(const Context& context, const ConstTensorView& tensor,
                           const TensorView& output, const ReduceScatterOptions& options = {});
[[nodiscard]] ResultHandle reduce_scatter_into_async(const Context& context,
                                                     const ConstTensorView& tensor,
                                                     const TensorView& output,
                                                     const ReduceScatterOptions& options = {});

/// Blocks until every rank of the set has called it, and returns the world rank that did so last.
/// Until then this rank takes part in others' allreduces with nothing (an average divides by the
/// set's size all the same); any other collective is an Error(mismatch) naming this rank. Waits for
/// this rank's handles first; other threads must not submit. Without timeout: after
/// HORA_STALL_WARNING without progress those that have not called it are named.
int join(const Context& context, ProcessSet set = kWorld);

}  // namespace hora
