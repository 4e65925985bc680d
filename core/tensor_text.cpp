#include <hora/printable.h>

#include <cstddef>
#include <cstdint>

#include "core/base/text.h"

namespace hora::internal {
namespace {

/// `call`: "<kind>.<number from 0>".
std::string unnamed_text(std::string_view call) {
  const auto dot = call.rfind('.');
  const std::string kind = "the unnamed " + printable(call.substr(0, dot));
  const std::string_view number = dot == std::string_view::npos ? "0" : call.substr(dot + 1);
  return number == "0" ? kind : kind + " in slot " + printable(number);
}

}  // namespace

std::string tensor_text(std::string_view name) {
  if (name.empty()) return "an unnamed tensor";
  if (name == kJoinName) return "join()";
  if (name == kAddSetName) return "add_process_set()";
  if (name == kRemoveSetName) return "remove_process_set()";
  if (name.starts_with(kUnnamedPrefix)) return unnamed_text(name.substr(kUnnamedPrefix.size()));
  return "tensor " + in_quotes(name);
}

std::string ranks_text(std::span<const int> ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && std::int64_t{ranks[end]} == std::int64_t{ranks[end - 1]} + 1)
      ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i == 2) text += ", " + std::to_string(ranks[end - 1]);
    if (end - i > 2) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string named_ranks(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks);
}

std::string ranks_have(std::span<const int> ranks) {
  return named_ranks(ranks) + (ranks.size() == 1 ? " has" : " have");
}

}  // namespace hora::internal
