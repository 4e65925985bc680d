#include <hora/error.h>
#include <hora/process_set.h>

#include <algorithm>
#include <string>

#include "core/engine/runtime.h"

namespace hora {

ProcessSet add_process_set(const Context& context, const std::vector<int>& ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "hora::add_process_set: " + why, context.rank());
  };
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) refuse("a set has at least one rank");
  if (sorted.front() < 0 || sorted.back() >= context.size()) {
    refuse("rank " + std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
           " does not exist: ranks are 0 to " + std::to_string(context.size() - 1));
  }
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("rank " + std::to_string(*twice) + " is given twice");
  return context.runtime()->engine().add_set(sorted);
}

void remove_process_set(const Context& context, ProcessSet set) {
  context.runtime()->engine().remove_set(set);
}

std::vector<int> ranks_of(const Context& context, ProcessSet set) {
  return context.runtime()->remaining_engine().ranks_of(set);
}

int rank_in(const Context& context, ProcessSet set) {
  const auto& ranks = context.runtime()->remaining_engine().ranks_of(set);
  const auto me = std::find(ranks.begin(), ranks.end(), context.rank());
  return me == ranks.end() ? -1 : static_cast<int>(me - ranks.begin());
}

int size_of(const Context& context, ProcessSet set) {
  return static_cast<int>(context.runtime()->remaining_engine().ranks_of(set).size());
}

}  // namespace hora
