/// Collectives on plain memory. Every rank of the process set must call each of them with the same
/// name, type, shape and options; the order of calls may differ between ranks.
///
///     std::vector<float> gradients(1000);
///     hora::allreduce(world, hora::view(gradients), {.name = "gradients"});       // their average
///     hora::Result all = hora::allgather(world, hora::view(gradients), {.name = "all"});
///
/// Views (types.h) are of the caller's memory. A TensorView is written to; a ConstTensorView, which
/// every TensorView is, too, is only read.
///
/// Errors, all hora::Error: mismatch (the same on every rank, naming the tensor, the ranks and both
/// values; the next collective is right), duplicate_name (thrown at once by the submitting call),
/// invalid_argument (at once: null data; negative extent, over 64 of them or 2^48 bytes; unknown
/// type, op or device; average of integers, a scale for integers; root out of range; splits that do
/// not fit; a process set that is unknown or that this rank is not in; name over 1024 bytes; a
/// device this build has no data path for; a negative timeout), shut_down, out_of_memory,
/// transport, timeout.
///
/// After an Error(transport) or Error(timeout) other nodes may still read the plain memory that a
/// blocking call was given; only the call itself writes to it.
///
/// A collective that is not complete within its `timeout` (by default HORA_TIMEOUT) after this rank
/// has submitted it throws Error(timeout), which names the tensor, the time and the ranks that it
/// waits for, as far as this rank knows them; until when, is each rank's own affair. As peers may
/// still reach this rank's memory, that is no way to take a collective back: everything that is in
/// flight, and whatever is submitted later, throws the same error, on this rank and on all others
/// that can be told, and the job ends with the context. Without an engine thread (InitOptions) it
/// is noticed by what makes progress: waiting, or Context::progress(). What all ranks have
/// submitted on a GPU is bounded by HORA_DEVICE_TIMEOUT instead.
///
/// Booleans (one byte; every value but 0 is true) take sum and max as logical or, product and min
/// as logical and. Integer sums and products wrap. min and max of a NaN are NaN.
///
/// Reproducible to the bit: each element is summed in local rank order, then in node order,
/// whatever was fused and whichever rank came first; float16 and bfloat16 are summed in float32
/// within a node and between nodes, rounded once each.
///
/// On GPUs NCCL reduces within a node, and the world's tensors over all nodes where
/// HORA_GPU_NETWORK has it so: in the type itself and in an order of its own, and its minima and
/// maxima leave NaN out. What NCCL does not have goes through host memory: Adasum, reductions of
/// int16 and uint16, and, in process sets of several nodes that it does not connect, allgather,
/// alltoall and reduce_scatter. There the submitting call blocks until the input's
/// stream has reached this point, and wait() until the result is on the GPU.
///
/// Thread rule: any thread.
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

/// An empty name means: the lowest-numbered unnamed slot of this kind of operation that is not in
/// flight on this rank. Unnamed calls must therefore be made and waited for in one order
/// everywhere.
struct AllreduceOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::average;
  ProcessSet process_set = kWorld;
  /// Each rank's values are multiplied by the first before the reduction, the result by the second:
  /// floating-point types only, in the type of the sum, in the same pass. Not with
  /// ReduceOp::adasum, whose result does not grow with its inputs' number: an
  /// Error(invalid_argument).
  double prescale = 1.0;
  double postscale = 1.0;
  /// From submission to completion; 0: HORA_TIMEOUT's; milliseconds::max(): none.
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
  /// Rows for each rank of the set, in its order; empty: the rows are divided evenly.
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

/// The tensors of all ranks of the set, one after the other along the first dimension, which may
/// differ by rank and be 0; the others must agree. A scalar counts as one row.
Result allgather(const Context& context, const ConstTensorView& tensor,
                 const AllgatherOptions& options = {});
[[nodiscard]] ResultHandle allgather_async(const Context& context, const ConstTensorView& tensor,
                                           const AllgatherOptions& options = {});

/// Sends `splits[i]` rows (of the first dimension, in order) to rank i of the set; gives the rows
/// that come from each rank, in its order.
Result alltoall(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options = {});
[[nodiscard]] ResultHandle alltoall_async(const Context& context, const ConstTensorView& tensor,
                                          const AlltoallOptions& options = {});

/// This rank's rows of the reduced tensor: the first dimension, n, is cut into one piece a rank of
/// the set, n / size rows long and for the first n % size ranks one more. The bits are allreduce's.
Result reduce_scatter(const Context& context, const ConstTensorView& tensor,
                      const ReduceScatterOptions& options = {});
[[nodiscard]] ResultHandle reduce_scatter_async(const Context& context,
                                                const ConstTensorView& tensor,
                                                const ReduceScatterOptions& options = {});

/// The same three into the caller's memory: `output`, as long as the result, of the input's type
/// and on its device, without overlapping it. It is hora's from the call until wait() returns;
/// after an error, or where a handle is dropped, its contents are unspecified. On a GPU each of the
/// two is ready on its own view's stream, and wait() orders both streams after the collective. The
/// Result is a view of `output`, with the result's shape and rows. What lies in a Buffer is written
/// there straight away; on the CPU other memory costs a copy of the result.
///
///     std::vector<float> own(100), all(100 * world.size());
///     hora::allgather_into(world, hora::view(own), hora::view(all), {.name = "all"});
///
/// Error(invalid_argument) of another type, device or null memory at once, and so of another
/// length of a reduce-scatter. The length of the others' results depends on all ranks: where that
/// of `output` is another one, wait() throws Error(invalid_argument) with both on this rank (the
/// same on all that give as long an output); ranks whose output fits have their result, and the
/// next collective is right.
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

/// Declares that this rank has no more data, and blocks until every rank of the set has; returns
/// the world rank that did so last, the same on every rank. Meanwhile this rank takes part in the
/// allreduces of the others with nothing: sum, min, max, product and Adasum are those of the other
/// ranks' values, and an average divides by the size of the set all the same. Any other collective
/// is an Error(mismatch) on the ranks that submit it, naming this rank.
/// What this rank has in flight is waited for first; other threads must not submit to the set.
/// No timeout: the others may have data for hours. Where nothing happens for HORA_STALL_WARNING,
/// those that have not called it are named in a warning.
int join(const Context& context, ProcessSet set = kWorld);

}  // namespace hora
