#include "core/negotiation/signature.h"

#include <fmt/format.h>

#include <array>

namespace hora::internal {

std::string_view name_of(OperationKind kind) noexcept {
  constexpr std::array<std::string_view, 9> kNames{
      "allreduce",       "broadcast",          "barrier", "allgather", "alltoall", "reduce_scatter",
      "add_process_set", "remove_process_set", "join"};
  const auto number = static_cast<std::size_t>(kind);
  return number < kNames.size() ? kNames[number] : "unknown operation";
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
  std::vector<std::string> extents;
  for (const std::int64_t extent : signature.shape) {
    extents.push_back(extent == kAnyExtent ? "*" : std::to_string(extent));
  }
  text += fmt::format(" [{}]", fmt::join(extents, ", "));
  if (changes_sets(signature.kind)) return text;
  if (signature.kind == OperationKind::allreduce ||
      signature.kind == OperationKind::reduce_scatter) {
    text.append(" ").append(name_of(signature.op));
    if (signature.prescale != 1.0) text += fmt::format(" prescale {}", signature.prescale);
    if (signature.postscale != 1.0) text += fmt::format(" postscale {}", signature.postscale);
  } else if (signature.kind == OperationKind::broadcast) {
    text += fmt::format(" from rank {}", signature.root);
  }
  return text.append(" on ").append(name_of(signature.device));
}

}  // namespace hora::internal
