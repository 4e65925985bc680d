#include "frameworks/torch/optimizer/step_counters.h"

#include <algorithm>

#include "core/base/text.h"

namespace hora::internal {
namespace {

constexpr std::int64_t most_steps = 1;
constexpr std::int64_t most_zero_grads = 3;
static_assert((most_steps + 1) * (most_zero_grads + 1) == step_lanes);

}  // namespace

void StepCounter::begin_round() {
  const std::int64_t steps = std::min(calls_.steps - before_.steps, most_steps);
  const std::int64_t zero_grads = std::min(calls_.zero_grads - before_.zero_grads, most_zero_grads);
  lane_ = static_cast<std::size_t>(steps * (most_zero_grads + 1) + zero_grads);
  before_ = calls_;
}

void StepCounter::restart() {
  *this = {};
}

std::string different_steps_text(const std::map<StepCalls, std::vector<int>>& ranks, bool updated) {
  std::string text = "the ranks are in different steps: ";
  const char* separator = "";
  for (const auto& [calls, those] : ranks) {
    text += separator + named_ranks(those) + (those.size() == 1 ? " is" : " are") + " in step " +
            std::to_string(calls.steps + 1) + " after " + std::to_string(calls.zero_grads) +
            " calls of zero_grad()";
    separator = ", ";
  }
  text += updated ? ". Some parameters have been updated by these gradients, while backward() ran"
                  : ". No rank has been updated by these gradients";
  return text +
         ". Every rank must call zero_grad(), "
         "backward() and step() equally often: one that has nothing to contribute still calls "
         "step(), and a step is given up, by zero_grad(), on all ranks or on none. To go on: make "
         "a new DistributedOptimizer on every rank, and call broadcast_parameters()";
}

}  // namespace hora::internal
