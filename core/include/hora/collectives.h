/// Collectives on plain memory. Every rank of the process set must call each of them with the same
/// name, type, shape and options; the order of calls may differ between ranks.
///
/// Errors, all hora::Error: mismatch (the same on every rank, naming the tensor, the ranks and both
/// values; the next collective is right), duplicate_name (thrown at once by the submitting call),
/// invalid_argument (at once: null data, negative extent, average of integers, root out of range,
/// unknown process set, name over 1024 bytes, a device this build has no data path for), shut_down,
/// out_of_memory, transport.
///
/// Reproducible to the bit: each element is summed in local rank order, then in node order,
/// whatever was fused and whichever rank came first; float16 and bfloat16 are summed in float32
/// within a node and between nodes, rounded once each.
///
/// Thread rule: any thread.
#pragma once

#include <hora/context.h>
#include <hora/handle.h>
#include <hora/types.h>

#include <cstdint>
#include <string>

namespace hora {

/// Ranks that take part. Set 0 is the world; only it is offered now.
using ProcessSet = std::uint32_t;

/// An empty name means: the lowest-numbered unnamed slot of this kind of operation that is not in
/// flight on this rank. Unnamed calls must therefore be made and waited for in one order
/// everywhere.
struct AllreduceOptions {
  std::string name = {};
  ReduceOp op = ReduceOp::average;
  ProcessSet process_set = 0;
};

struct BroadcastOptions {
  std::string name = {};
  int root = 0;  ///< world rank whose values all get
  ProcessSet process_set = 0;
};

struct BarrierOptions {
  std::string name = {};
  ProcessSet process_set = 0;
};

/// Replaces the values by their sum or average over all ranks.
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

}  // namespace hora
