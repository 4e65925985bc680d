/// Exchanges as core/api asks engines for them, on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/api/results.h"
#include "tests/ops/nccl/gpu_world.h"

namespace hora::internal::test {

/// One exchange that all ranks take part in.
struct Exchange {
  OperationKind kind = OperationKind::allgather;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t columns = 1;
  std::vector<std::vector<std::int64_t>> extents = {};  ///< by rank: as Request::rows
  std::vector<std::vector<std::byte>> values = {};      ///< by rank

  std::string text() const;
  Request request(int rank, std::string_view name) const;
};

/// Values are whole numbers; every second exchange is even.
Exchange random_exchange(OperationKind kind, int ranks, std::mt19937_64& random);
/// One that runs on the GPUs of one node.
Exchange random_gpu_exchange(OperationKind kind, int ranks, std::mt19937_64& random);

/// An exchange that has been submitted, with its result. Goes before its world.
struct Pending {
  std::shared_ptr<Operation> submission;
  std::shared_ptr<ResultMemory> result;
};

/// By way of the engine's `rank`, straight on the device or through host memory. `input` outlives
/// the exchange.
Pending submit_on_gpu(GpuWorld& world, int rank, const Exchange& exchange, const std::string& name,
                      const DeviceTensor& input, ProcessSet set = kWorld);

/// An even exchange for whose result rank `culprit` has no memory fails on every rank, and the next
/// one does not.
void expect_to_fail_alone_without_memory(GpuWorld& world, OperationKind kind, int culprit);

/// What the stream of a result on a GPU finds in it, and what is in one of host memory.
std::vector<std::byte> bytes_of(GpuWorld& world, int rank, const ResultMemory& result);

}  // namespace hora::internal::test
