#include "core/negotiation/signature.h"

#include <array>
#include <charconv>
#include <span>

#include "core/base/checked.h"

namespace hora::internal {
namespace {

/// As many digits as tell any two values apart.
std::string exact(double value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

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
    case OperationKind::add_process_set:
      return "add_process_set";
    case OperationKind::remove_process_set:
      return "remove_process_set";
    case OperationKind::join:
      return "join";
  }
  return "unknown operation";
}

std::size_t Signature::bytes() const {
  if (kind == OperationKind::barrier || changes_sets(kind) || is_exchange(kind)) return 0;
  return static_cast<std::size_t>(elements_of(type, shape)) * size_of(type);
}

std::size_t Signature::row_bytes() const {
  const auto row = std::span(shape).subspan(shape.empty() ? 0 : 1);
  return static_cast<std::size_t>(elements_of(type, row)) * size_of(type);
}

std::string to_string(const Signature& signature) {
  std::string text(name_of(signature.kind));
  if (signature.kind == OperationKind::barrier || signature.kind == OperationKind::join)
    return text;
  if (!changes_sets(signature.kind)) text.append(" ").append(name_of(signature.type));
  text.append(" [");
  for (std::size_t i = 0; i < signature.shape.size(); ++i) {
    text.append(i == 0 ? "" : ", ");
    text.append(signature.shape[i] == kAnyExtent ? "*" : std::to_string(signature.shape[i]));
  }
  text.append("]");
  if (changes_sets(signature.kind)) return text;
  if (signature.kind == OperationKind::allreduce ||
      signature.kind == OperationKind::reduce_scatter) {
    text.append(" ").append(name_of(signature.op));
    if (signature.prescale != 1.0) text += " prescale " + exact(signature.prescale);
    if (signature.postscale != 1.0) text += " postscale " + exact(signature.postscale);
  } else if (signature.kind == OperationKind::broadcast) {
    text.append(" from rank ").append(std::to_string(signature.root));
  }
  return text.append(" on ").append(name_of(signature.device));
}

}  // namespace hora::internal
