#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Part `part` of `parts` about equal ones of all elements, in pieces of one dimension without
/// gaps, none of them empty.
Tensors part_of(const Tensors& tensors, int part, int parts) {
  std::int64_t all = 0;
  for (const at::Tensor& tensor : tensors) all += tensor.numel();
  // Without a product that could overflow.
  const auto bound = [&](std::int64_t p) {
    return all / parts * p + std::min<std::int64_t>(all % parts, p);
  };
  Tensors pieces;
  std::int64_t before = 0;
  for (const at::Tensor& tensor : tensors) {
    const std::int64_t from = std::max(bound(part), before);
    const std::int64_t to = std::min(bound(part + 1), before + tensor.numel());
    if (from < to) {
      const bool dense = tensor.is_non_overlapping_and_dense();
      pieces.push_back(in_memory_order(dense ? tensor : tensor.contiguous())
                           .narrow(0, from - before, to - from));
    }
    before += tensor.numel();
  }
  return pieces;
}

std::vector<Tensors> by_type_and_device(const Tensors& tensors) {
  std::vector<Tensors> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::ranges::find_if(groups, [&](const Tensors& group) {
      return group.front().scalar_type() == tensor.scalar_type() &&
             group.front().device() == tensor.device();
    });
    (found != groups.end() ? *found : groups.emplace_back()).push_back(tensor);
  }
  return groups;
}

/// The norm of each, in `type`, at least as wide as theirs. LibTorch 1.13 converts each first.
template <class List>
Tensors norms_of(const List& tensors, at::ScalarType type) {
  if constexpr (requires { at::_foreach_norm(tensors, 2, type); }) {
    return at::_foreach_norm(tensors, 2, type);
  } else {
    List wide;
    for (const at::Tensor& tensor : tensors) wide.push_back(tensor.to(type));
    return at::_foreach_norm(wide, 2);
  }
}

/// The sum of squares of elements in pieces of one dimension: a float64, see clip().
at::Tensor squares_of(const Tensors& pieces, const std::optional<at::Device>& device) {
  if (!device) {
    double sum = 0.0;
    for (const at::Tensor& flat : pieces) {
      sum += sum_of_squares(to_data_type(flat.scalar_type()).value(),
                            static_cast<const std::byte*>(flat.data_ptr()),
                            static_cast<std::size_t>(flat.numel()));
    }
    return at::scalar_tensor(sum, at::kDouble);
  }
  at::Tensor sum = at::zeros({}, at::device(*device).dtype(at::kDouble));
  for (const Tensors& group : by_type_and_device(pieces)) {
    const auto type = group.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensors norms = norms_of(group, type);
    sum += at::stack(norms).to(at::kDouble).square().sum().to(*device);
  }
  return sum;
}

}  // namespace

double clip(const Peers& peers, const std::string& name, const Tensors& gradients, bool shared,
            double max_norm, const std::optional<at::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto squares_of_rank = [&](int rank) {
    return squares_of(part_of(gradients, shared ? rank : 0, shared ? peers.size : 1), device);
  };
  // Each rank's sum, and that it has given one. One that has joined has given none.
  at::Tensor shares =
      at::zeros({peers.size, 2}, at::device(device.value_or(at::kCPU)).dtype(at::kDouble));
  const at::Tensor own = shares.select(0, peers.rank_in_set);
  own.select(0, 0).copy_(squares_of_rank(peers.rank_in_set));
  own.select(0, 1).fill_(1.0);
  if (peers.size > 1) {
    allreduce_(peers.context, shares,
               {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
  }
  const at::Tensor on_host = shares.cpu();
  double sum = 0.0;
  for (int rank = 0; rank < peers.size; ++rank) {
    const double* const share = on_host.data_ptr<double>() + std::ptrdiff_t{2} * rank;
    const bool missing = shared && share[1] == 0.0;
    sum += missing ? squares_of_rank(rank).item<double>() : share[0];
  }
  const double norm = std::sqrt(sum);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return norm;
  for (const Tensors& group : by_type_and_device(gradients)) {
    const at::Tensor in_type = at::scalar_tensor(factor, group.front().scalar_type());
    const double rounded = device ? *in_type.to(at::kDouble).data_ptr<double>() : factor;
    if (group.front().is_cuda()) {  // other devices' fallback does not write lists back
      at::_foreach_mul_(group, rounded);
      continue;
    }
    for (const at::Tensor& gradient : group) gradient.mul_(rounded);
  }
  return norm;
}

}  // namespace hora::internal
