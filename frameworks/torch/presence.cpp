#include "frameworks/torch/presence.h"

#include <algorithm>
#include <utility>

namespace hora {

PresenceExchange::PresenceExchange(const Context& context, std::string name, std::size_t gradients)
    : context_(context), name_(std::move(name)), present_(gradients, 1) {}

void PresenceExchange::begin() {
  // The former round's, where nobody here has waited for it: the name must be free.
  if (handle_.valid()) handle_.wait();
  counts_ = present_;
  if (context_.size() == 1) return;
  handle_ =
      allreduce_async(context_, view(counts_.data(), static_cast<std::int64_t>(counts_.size())),
                      {.name = name_, .op = ReduceOp::sum});
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
