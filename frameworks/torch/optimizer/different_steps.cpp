#include "frameworks/torch/optimizer/different_steps.h"

#include <map>
#include <utility>

namespace hora {
namespace {

constexpr std::int64_t reported_elements = 4;
static_assert(sizeof(ToldSteps) == reported_elements * sizeof(std::int64_t));

}  // namespace

StepsExchange::StepsExchange(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void StepsExchange::tell(const StepCalls& calls) {
  all_.resize(static_cast<std::size_t>(peers_.size));
  all_[static_cast<std::size_t>(peers_.rank_in_set)] = {1, peers_.context.rank(), calls.steps,
                                                        calls.zero_grads};
  handle_ =
      allreduce_async(peers_.context, view(&all_.front().reported, reported_elements * peers_.size),
                      {.name = name_ + ".steps", .op = ReduceOp::sum, .process_set = peers_.set});
}

Error StepsExchange::error() {
  handle_.wait();
  std::map<StepCalls, std::vector<int>> ranks;
  for (const ToldSteps& one : all_) {
    if (one.reported == 0) continue;
    ranks[{one.steps, one.zero_grads}].push_back(static_cast<int>(one.rank));
  }
  return {ErrorCode::mismatch, "DistributedOptimizer: " + different_steps_text(ranks), -1, name_};
}

}  // namespace hora
