#include "core/tensor_text.h"

#include <hora/printable.h>

namespace hora {
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

}  // namespace hora
