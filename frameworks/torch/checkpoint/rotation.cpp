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

std::vector<Move> recovery_plan(const SlotsThere& there) {
  std::vector<Move> plan;
  if (there.staged && !there.last) plan.push_back(renaming(kStaged, kLast));
  if (there.staged_best && !there.best) plan.push_back(renaming(kStagedBest, kBest));
  for (const auto slot : {kStaged, kStagedBest, kDiscarded, kDiscardedBest}) {
    plan.push_back(removal(slot));
  }
  return plan;
}

std::vector<Move> rotation_plan(const SlotsThere& there, bool best) {
  std::vector<Move> plan;
  if (there.last && there.previous && there.previous_is_kept) {
    plan.push_back(renaming(kLast, kDiscarded));
  } else if (there.last) {
    if (there.previous) plan.push_back(renaming(kPrevious, kDiscarded));
    plan.push_back(renaming(kLast, kPrevious));
  }
  plan.push_back(renaming(kStaged, kLast));
  if (best) {
    if (there.best) plan.push_back(renaming(kBest, kDiscardedBest));
    plan.push_back(renaming(kStagedBest, kBest));
    plan.push_back(removal(kDiscardedBest));
  }
  plan.push_back(removal(kDiscarded));
  return plan;
}

}  // namespace hora::internal
