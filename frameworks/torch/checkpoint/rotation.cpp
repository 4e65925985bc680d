#include "frameworks/torch/checkpoint/rotation.h"

namespace hora::internal {
namespace {

Move renaming(std::string_view from, std::string_view to) {
  return {std::string(from), std::string(to)};
}

Move removal(std::string_view what) {
  return {std::string(what), ""};
}

}  // namespace

std::vector<std::string_view> slots() {
  return {kLast, kPrevious, kBest, kStaged, kStagedBest, kDiscarded, kDiscardedBest};
}

std::vector<Move> rotation_plan(const SlotsThere& there) {
  // A folder is renamed to a name that is free.
  std::vector<Move> plan{removal(kDiscarded), removal(kDiscardedBest)};
  if (there.staged) {
    if (there.last && there.previous) {
      plan.push_back(renaming(there.previous_is_kept ? kLast : kPrevious, kDiscarded));
    }
    if (there.last && !(there.previous && there.previous_is_kept)) {
      plan.push_back(renaming(kLast, kPrevious));
    }
    plan.push_back(renaming(kStaged, kLast));
  } else {
    plan.push_back(removal(kStaged));
  }
  if (there.staged_best) {
    if (there.best) plan.push_back(renaming(kBest, kDiscardedBest));
    plan.push_back(renaming(kStagedBest, kBest));
  } else {
    plan.push_back(removal(kStagedBest));
  }
  plan.push_back(removal(kDiscardedBest));
  plan.push_back(removal(kDiscarded));
  return plan;
}

}  // namespace hora::internal
