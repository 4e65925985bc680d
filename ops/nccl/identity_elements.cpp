#include "ops/nccl/identity_elements.h"

#include <algorithm>
#include <vector>

#include "ops/cuda/check.h"
#include "ops/local/identity_element.h"

namespace hora {
namespace {

constexpr std::size_t kBlockElements = 4096;

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

}  // namespace hora
