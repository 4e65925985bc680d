#include "frameworks/torch/optimizer/presence.h"

#include <algorithm>
#include <utility>

namespace hora {

PresenceExchange::PresenceExchange(const Peers& peers, std::string name, std::size_t gradients)
    : peers_(peers), name_(std::move(name)), present_(gradients, 1) {}

void PresenceExchange::begin() {
  // The former round's, where nobody here has waited for it: the name must be free.
  if (handle_.valid()) handle_.wait();
  counts_ = present_;
  if (peers_.size == 1) return;
  handle_ = allreduce_async(peers_.context,
                            view(counts_.data(), static_cast<std::int64_t>(counts_.size())),
                            {.name = name_, .op = ReduceOp::sum, .process_set = peers_.set});
}

bool PresenceExchange::anywhere(std::size_t index) {
  if (present_[index] != 0) return true;
  if (handle_.valid()) handle_.wait();
  return counts_[index] != 0;
}

void PresenceExchange::end() {
  std::fill(present_.begin(), present_.end(), 1);
}

}  // namespace hora
