#include "frameworks/torch/optimizer/fused_rounds.h"

#include <utility>

namespace hora::internal {

FusedRounds::FusedRounds(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void FusedRounds::answer(bool updates) {
  // The former round's, which a no has not waited for: the name must be free.
  if (handle_.valid()) handle_.wait();
  answer_ = updates;
  updates_ = false;
  ranks_ = updates ? 1 : 0;
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context, view(&ranks_, 1),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

void FusedRounds::agree() {
  if (!answer_) return;
  if (handle_.valid()) handle_.wait();
  updates_ = ranks_ == peers_.size;
}

}  // namespace hora::internal
