#include "core/negotiation/signature.h"

namespace hora {

std::string_view name_of(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::allreduce:
      return "allreduce";
    case OperationKind::broadcast:
      return "broadcast";
    case OperationKind::barrier:
      return "barrier";
    case OperationKind::allgather:
      return "allgather";
    case OperationKind::alltoall:
      return "alltoall";
    case OperationKind::reduce_scatter:
      return "reduce_scatter";
  }
  return "unknown operation";
}

std::size_t Signature::bytes() const {
  return kind == OperationKind::barrier ? 0 : TensorView{nullptr, type, shape, {}}.bytes();
}

std::string to_string(const Signature& signature) {
  std::string text(name_of(signature.kind));
  if (signature.kind == OperationKind::barrier) return text;
  text.append(" ").append(name_of(signature.type)).append(" [");
  for (std::size_t i = 0; i < signature.shape.size(); ++i) {
    text.append(i == 0 ? "" : ", ").append(std::to_string(signature.shape[i]));
  }
  text.append("]");
  if (signature.kind == OperationKind::allreduce) {
    text.append(" ").append(name_of(signature.op));
  } else {
    text.append(" from rank ").append(std::to_string(signature.root));
  }
  return text.append(" on ").append(name_of(signature.device));
}

}  // namespace hora
