#include "frameworks/torch/optimizer/gradient_norm.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/hora.h>

#include <algorithm>
#include <cmath>

#include "frameworks/torch/tensor_view.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

/// One dimension without gaps; the order of elements is of no matter.
at::Tensor flat(const at::Tensor& tensor) {
  return in_memory_order(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous());
}

double squares(const at::Tensor& flat) {
  const auto* data = static_cast<const std::byte*>(flat.data_ptr());
  return sum_of_squares(to_data_type(flat.scalar_type()).value(), data,
                        static_cast<std::size_t>(flat.numel()));
}

std::vector<std::int64_t> counts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

double squares_of_part(const std::vector<at::Tensor>& gradients, int part, int parts) {
  double sum = 0.0;
  for (const at::Tensor& tensor : elements_of_part(gradients, part, parts)) sum += squares(tensor);
  return sum;
}

/// A rank's contribution: its sum, and that it has contributed one.
struct Share {
  double squares = 0.0;
  double given = 0.0;
};

/// Every member's share, in their order. A member that has joined contributes none.
std::vector<Share> exchange(const Peers& peers, const std::string& name, double squares) {
  std::vector<Share> shares(static_cast<std::size_t>(peers.size));
  shares[static_cast<std::size_t>(peers.rank_in_set)] = {squares, 1.0};
  if (peers.size > 1) {
    allreduce(peers.context, view(&shares.front().squares, 2 * std::int64_t{peers.size}),
              {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
  }
  return shares;
}

}  // namespace

std::vector<ElementRange> part_of_elements(std::span<const std::int64_t> counts, int part,
                                           int parts) {
  std::int64_t all = 0;
  for (const std::int64_t count : counts) all += count;
  // Without a product that could overflow.
  const auto bound = [&](std::int64_t p) {
    return all / parts * p + std::min<std::int64_t>(all % parts, p);
  };
  const std::int64_t begin = bound(part);
  const std::int64_t end = bound(part + 1);
  std::vector<ElementRange> ranges;
  std::int64_t before = 0;
  for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
    const std::int64_t from = std::max(begin, before);
    const std::int64_t to = std::min(end, before + counts[tensor]);
    if (from < to) ranges.push_back({tensor, from - before, to - from});
    before += counts[tensor];
  }
  return ranges;
}

std::vector<at::Tensor> elements_of_part(const std::vector<at::Tensor>& tensors, int part,
                                         int parts) {
  std::vector<at::Tensor> elements;
  for (const ElementRange& range : part_of_elements(counts_of(tensors), part, parts)) {
    elements.push_back(flat(tensors[range.tensor]).narrow(0, range.begin, range.count));
  }
  return elements;
}

double norm_of_equal_gradients(const Peers& peers, const std::string& name,
                               const std::vector<at::Tensor>& gradients) {
  const auto shares =
      exchange(peers, name, squares_of_part(gradients, peers.rank_in_set, peers.size));
  double sum = 0.0;
  for (int place = 0; place < peers.size; ++place) {
    const Share& share = shares[static_cast<std::size_t>(place)];
    sum += share.given != 0.0 ? share.squares : squares_of_part(gradients, place, peers.size);
  }
  return std::sqrt(sum);
}

double norm_of_own_gradients(const Peers& peers, const std::string& name,
                             const std::vector<at::Tensor>& gradients) {
  double sum = 0.0;
  for (const Share& share : exchange(peers, name, squares_of_part(gradients, 0, 1))) {
    sum += share.squares;
  }
  return std::sqrt(sum);
}

void clip(const std::vector<at::Tensor>& gradients, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor);
}

}  // namespace hora::internal
