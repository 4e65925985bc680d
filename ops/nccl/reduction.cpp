#include "ops/nccl/reduction.h"

#include <hora/error.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cuda/functions.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

constexpr std::size_t kBlockElements = 4096;

bool is_reduction(const Unit& unit) {
  return unit.kind == OperationKind::allreduce || unit.kind == OperationKind::reduce_scatter;
}

}  // namespace

const std::byte* IdentityElements::block(DataType type, ReduceOp op) {
  auto& block = blocks_[{type, op}];
  if (block) return block.get();
  std::vector<std::byte> values(kBlockElements * size_of(type));
  fill_identity(type, op, values.data(), kBlockElements);
  // A stream of its own: on the other one the copy would wait for collectives.
  const CudaStream stream(cuda_, kUrgentPriority);
  block = allocate_owned(heap_, values.size(), stream.get());
  heap_.to_device(block.get(), values.data(), values.size(), stream.get());
  return block.get();
}

void IdentityElements::fill(DataType type, ReduceOp op, std::byte* target, std::size_t count) {
  const std::byte* const source = block(type, op);
  std::vector<CopyPiece> pieces;
  for (std::size_t first = 0; first < count; first += kBlockElements) {
    const std::size_t elements = std::min(kBlockElements, count - first);
    pieces.push_back({source, target + first * size_of(type), static_cast<std::int64_t>(elements)});
  }
  if (pieces.empty()) return;
  const BatchedCopy copy{.pieces = pieces, .source_type = type, .target_type = type};
  cuda_check(cuda_, cuda_.batched_copy(copy, stream_.get()), "the kernel batched_copy");
}

ncclDataType_t to_nccl(DataType type) {
  switch (type) {
    case DataType::float16:
      return ncclFloat16;
    case DataType::bfloat16:
      return ncclBfloat16;
    case DataType::float32:
      return ncclFloat32;
    case DataType::float64:
      return ncclFloat64;
    case DataType::int32:
      return ncclInt32;
    case DataType::int64:
      return ncclInt64;
    case DataType::uint8:
    case DataType::boolean:
      return ncclUint8;
    case DataType::int8:
      return ncclInt8;
    case DataType::uint32:
      return ncclUint32;
    case DataType::uint64:
      return ncclUint64;
    case DataType::int16:
    case DataType::uint16:
      throw Error(ErrorCode::invalid_argument,
                  "NCCL has no type for " + std::string(name_of(type)) +
                      ": convert the tensor to int32, or move it to the CPU");
  }
  throw Error(ErrorCode::invalid_argument,
              "unknown data type " + std::to_string(static_cast<int>(type)));
}

ncclDataType_t travelling_type(DataType type) {
  const bool of_16_bits = type == DataType::int16 || type == DataType::uint16;
  return of_16_bits ? ncclFloat16 : to_nccl(type);
}

ncclRedOp_t to_nccl(ReduceOp op, DataType type) {
  const bool of_truth = type == DataType::boolean;
  switch (op) {
    case ReduceOp::average:
      return ncclAvg;
    case ReduceOp::sum:
      return of_truth ? ncclMax : ncclSum;
    case ReduceOp::product:
      return of_truth ? ncclMin : ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::adasum:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              "NCCL has no " + std::string(name_of(op)) + ": move the tensor to the CPU");
}

bool sums_scaled_in_windows(const Unit& unit) {
  return unit.kind == OperationKind::allreduce && unit.op == ReduceOp::average &&
         is_floating_point(unit.type) && unit.type != DataType::float64;
}

bool needs_preparation(const Unit& unit) {
  return is_reduction(unit) && (unit.type == DataType::boolean || unit.prescale != 1.0);
}

BatchedCopy preparation(const Unit& unit) {
  BatchedCopy copy{.pieces = {}, .source_type = unit.type, .target_type = unit.type};
  if (!is_reduction(unit)) return copy;
  if (unit.type == DataType::boolean) copy.source_type = DataType::uint8;
  copy.scale = unit.prescale;
  return copy;
}

}  // namespace hora::internal
