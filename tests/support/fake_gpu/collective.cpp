#include "tests/support/fake_gpu/collective.h"

#include <cstring>
#include <utility>
#include <vector>

#include "ops/local/kernels.h"

namespace hora::internal::test {
namespace {

bool rooted(const Collective& part) {
  return part.kind == CollectiveKind::broadcast || part.kind == CollectiveKind::reduce ||
         part.is_transfer();
}

bool reduces(const Collective& part) {
  return part.kind != CollectiveKind::all_gather && part.kind != CollectiveKind::broadcast &&
         !part.is_transfer();
}

bool receives(const Collective& part) {
  if (part.is_transfer()) return part.kind == CollectiveKind::recv;
  return part.kind != CollectiveKind::reduce || part.rank == part.root;
}

bool sends(const Collective& part) {
  if (part.is_transfer()) return part.kind == CollectiveKind::send;
  return part.kind != CollectiveKind::broadcast || part.rank == part.root;
}

/// Reduces [first, first + count) of all ranks' memory into `outputs`.
void combine(std::span<const Collective> parts, std::size_t first,
             std::span<std::byte* const> outputs) {
  const Collective& any = parts.front();
  if (any.count == 0) return;
  std::vector<const std::byte*> inputs;
  for (const Collective& part : parts) {
    inputs.push_back(static_cast<const std::byte*>(part.send) + first * size_of(any.type));
  }
  reduce(any.type, any.op, inputs, outputs, any.count,
         {.post = any.op == ReduceOp::average ? 1.0 / any.ranks : 1.0});
}

template <class Key, class Value, std::size_t count>
std::optional<Value> found_in(const std::pair<Key, Value> (&pairs)[count], Key key) {
  for (const auto& [each, value] : pairs) {
    if (each == key) return value;
  }
  return std::nullopt;
}

void copy(void* target, const void* source, std::size_t bytes) {
  if (bytes > 0 && target != source) std::memmove(target, source, bytes);
}

}  // namespace

const char* name_of(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                    "reduce",     "send",           "recv"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t Collective::send_bytes() const {
  const std::size_t part = count * size_of(type);
  if (kind == CollectiveKind::reduce_scatter) return part * static_cast<std::size_t>(ranks);
  return sends(*this) ? part : 0;
}

std::size_t Collective::receive_bytes() const {
  const std::size_t part = count * size_of(type);
  if (kind == CollectiveKind::all_gather) return part * static_cast<std::size_t>(ranks);
  return receives(*this) ? part : 0;
}

std::string Collective::text() const {
  std::string text = std::string(name_of(kind)) + " of " + std::to_string(count) + " " +
                     std::string(hora::name_of(type));
  if (reduces(*this)) text += ", " + std::string(hora::name_of(op));
  if (rooted(*this)) text += (is_transfer() ? ", peer " : ", root ") + std::to_string(root);
  if (!windows.empty()) text += ", in" + windows;
  return text;
}

std::optional<DataType> from_nccl(ncclDataType_t type) {
  constexpr std::pair<ncclDataType_t, DataType> kTypes[] = {
      {ncclFloat16, DataType::float16}, {ncclBfloat16, DataType::bfloat16},
      {ncclFloat32, DataType::float32}, {ncclFloat64, DataType::float64},
      {ncclInt32, DataType::int32},     {ncclInt64, DataType::int64},
      {ncclUint8, DataType::uint8},     {ncclInt8, DataType::int8},
      {ncclUint32, DataType::uint32},   {ncclUint64, DataType::uint64}};
  return found_in(kTypes, type);
}

std::optional<ReduceOp> from_nccl(ncclRedOp_t op) {
  constexpr std::pair<ncclRedOp_t, ReduceOp> kOps[] = {{ncclSum, ReduceOp::sum},
                                                       {ncclAvg, ReduceOp::average},
                                                       {ncclMin, ReduceOp::min},
                                                       {ncclMax, ReduceOp::max},
                                                       {ncclProd, ReduceOp::product}};
  return found_in(kOps, op);
}

std::string disagreement(std::span<const Collective> parts) {
  const std::string first = parts.front().text();
  for (const Collective& part : parts) {
    if (part.text() != first) {
      return "rank 0: " + first + "; rank " + std::to_string(part.rank) + ": " + part.text();
    }
  }
  return {};
}

void perform(std::span<const Collective> parts) {
  const Collective& any = parts.front();
  const std::size_t bytes = any.count * size_of(any.type);
  const Collective& root = parts[static_cast<std::size_t>(any.root)];
  std::vector<std::byte*> outputs;
  for (const Collective& part : parts) outputs.push_back(static_cast<std::byte*>(part.receive));
  switch (any.kind) {
    case CollectiveKind::all_reduce:
      return combine(parts, 0, outputs);
    case CollectiveKind::reduce_scatter:
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        combine(parts, rank * any.count, std::span(outputs).subspan(rank, 1));
      }
      return;
    case CollectiveKind::all_gather:
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        for (std::byte* output : outputs) copy(output + rank * bytes, parts[rank].send, bytes);
      }
      return;
    case CollectiveKind::broadcast:
      for (std::byte* output : outputs) copy(output, root.send, bytes);
      return;
    case CollectiveKind::reduce:
      return combine(parts, 0, std::span(outputs).subspan(static_cast<std::size_t>(any.root), 1));
    case CollectiveKind::send:
    case CollectiveKind::recv:
      return;  // NcclWorld::transfer
  }
}

}  // namespace hora::internal::test
