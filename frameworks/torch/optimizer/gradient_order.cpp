#include "frameworks/torch/optimizer/gradient_order.h"

#include <hora/hora.h>

#include <cstdint>

namespace hora {

void GradientOrder::note(std::size_t gradient) {
  if (came_[gradient]) return;
  came_[gradient] = true;
  order_.push_back(gradient);
}

std::vector<std::size_t> GradientOrder::agree(const Peers& peers, const std::string& name,
                                              const std::vector<bool>& present) const {
  const auto count = static_cast<std::int64_t>(came_.size());
  std::vector<std::int64_t> order(order_.begin(), order_.end());
  for (std::size_t gradient = 0; gradient < came_.size(); ++gradient) {
    if (!came_[gradient]) order.push_back(static_cast<std::int64_t>(gradient));
  }
  // An allreduce, which ranks that have joined do not block. Of the others the first one's
  // numbers are the largest.
  for (std::int64_t& gradient : order) gradient += (peers.size - peers.rank_in_set) * count;
  allreduce(peers.context, view(order.data(), count),
            {.name = name, .op = ReduceOp::max, .process_set = peers.set});
  std::vector<std::size_t> last_first;
  for (auto gradient = order.rbegin(); gradient != order.rend(); ++gradient) {
    const auto index = static_cast<std::size_t>(*gradient % count);
    if (present[index]) last_first.push_back(index);
  }
  return last_first;
}

}  // namespace hora
