#include "frameworks/torch/optimizer/round_end.h"

#include <utility>

namespace hora {

RoundEndExchange::RoundEndExchange(const Peers& peers, std::string name)
    : peers_(peers), name_(std::move(name)) {}

void RoundEndExchange::tell(RoundEnd end) {
  if (std::exchange(told_, true)) return;
  counts_ = {end == RoundEnd::step, end == RoundEnd::discard};
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context, view(counts_.data(), 2),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

bool RoundEndExchange::agree() {
  told_ = false;
  if (handle_.valid()) handle_.wait();
  return counts_[0] == 0 || counts_[1] == 0;
}

}  // namespace hora
