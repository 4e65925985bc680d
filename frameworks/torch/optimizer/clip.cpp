#include "frameworks/torch/optimizer/clip.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/hora.h>
#include <hora/torch/collectives.h>

#include <algorithm>
#include <cmath>

#include "frameworks/torch/tensor_view.h"
#include "ops/local/kernels.h"

namespace hora::internal {

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

namespace {

using Tensors = std::vector<at::Tensor>;

/// Part `part` of `parts` of the tensors' elements, in pieces of one dimension without gaps, whose
/// order of elements is of no matter, none of them empty.
Tensors elements_of_part(const Tensors& tensors, int part, int parts) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  Tensors elements;
  for (const ElementRange& range : part_of_elements(counts, part, parts)) {
    const at::Tensor& tensor = tensors[range.tensor];
    elements.push_back(
        in_memory_order(tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous())
            .narrow(0, range.begin, range.count));
  }
  return elements;
}

double squares_on_host(const Tensors& gradients, int part, int parts) {
  double sum = 0.0;
  for (const at::Tensor& flat : elements_of_part(gradients, part, parts)) {
    sum += sum_of_squares(to_data_type(flat.scalar_type()).value(),
                          static_cast<const std::byte*>(flat.data_ptr()),
                          static_cast<std::size_t>(flat.numel()));
  }
  return sum;
}

}  // namespace

double clip_on_host(const Peers& peers, const std::string& name, const Tensors& gradients,
                    GradientOwners owners, double max_norm) {
  const at::NoGradGuard no_grad;
  const bool parted = owners == GradientOwners::all;
  // Each rank's sum, and that it has given one. One that has joined has given none.
  std::vector<double> shares(2 * static_cast<std::size_t>(peers.size), 0.0);
  double* const own = &shares[2 * static_cast<std::size_t>(peers.rank_in_set)];
  own[0] = squares_on_host(gradients, parted ? peers.rank_in_set : 0, parted ? peers.size : 1);
  own[1] = 1.0;
  if (peers.size > 1) {
    allreduce(peers.context, view(shares.data(), 2 * std::int64_t{peers.size}),
              {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
  }
  double sum = 0.0;
  for (int rank = 0; rank < peers.size; ++rank) {
    const double* const share = &shares[2 * static_cast<std::size_t>(rank)];
    const bool missing = parted && share[1] == 0.0;
    sum += missing ? squares_on_host(gradients, rank, peers.size) : share[0];
  }
  const double norm = std::sqrt(sum);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return norm;
  for (const at::Tensor& gradient : gradients) gradient.mul_(factor);
  return norm;
}

namespace {

/// Tensors of one type, on one device.
struct EqualTensors {
  at::ScalarType type;
  at::Device device;
  Tensors tensors;
};

std::vector<EqualTensors> by_type_and_device(const Tensors& tensors) {
  std::vector<EqualTensors> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const EqualTensors& group) {
      return group.type == tensor.scalar_type() && group.device == tensor.device();
    });
    if (found != groups.end()) {
      found->tensors.push_back(tensor);
    } else {
      groups.push_back({tensor.scalar_type(), tensor.device(), {tensor}});
    }
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

/// Multiplies tensors of one type by a factor of that type. A function by name: in LibTorch 1.13 a
/// tensor would be taken for a list of one.
template <class ForeachMultiply>
void multiply(const Tensors& tensors, const at::Tensor& factor) {
  if constexpr (requires { static_cast<ForeachMultiply>(at::_foreach_mul_); }) {
    static_cast<ForeachMultiply>(at::_foreach_mul_)(tensors, factor);
  } else {
    for (const at::Tensor& tensor : tensors) tensor.mul_(factor);
  }
}

/// Sums the squares of part `part` of `parts` of all elements: a float64 on `device`.
at::Tensor squares_of_part(const Tensors& gradients, int part, int parts,
                           const at::Device& device) {
  at::Tensor sum = at::zeros({}, at::device(device).dtype(at::kDouble));
  for (const EqualTensors& group : by_type_and_device(elements_of_part(gradients, part, parts))) {
    const auto type = group.type == at::kDouble ? at::kDouble : at::kFloat;
    const Tensors norms = norms_of(group.tensors, type);
    sum += at::stack(norms).to(at::kDouble).square().sum().to(device);
  }
  return sum;
}

at::Tensor factor_of(const at::Tensor& norm, double max_norm) {
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

void multiply_all(const Tensors& gradients, const at::Tensor& factor) {
  for (const EqualTensors& group : by_type_and_device(gradients)) {
    multiply<void (*)(at::TensorList, const at::Tensor&)>(group.tensors,
                                                          factor.to(group.device, group.type));
  }
}

/// [ranks, 2]: each member's sum of squares, and that it has given one. A member that has joined
/// has given none.
at::Tensor shares_of_all(const Peers& peers, const std::string& name, const at::Tensor& squares) {
  at::Tensor shares = at::zeros({peers.size, 2}, squares.options());
  const at::Tensor own = shares.select(0, peers.rank_in_set);
  own.select(0, 0).copy_(squares);
  own.select(0, 1).fill_(1.0);
  if (peers.size > 1) {
    allreduce_(peers.context, shares,
               {.name = name, .op = ReduceOp::sum, .process_set = peers.set});
  }
  return shares;
}

/// With the parts of members that have joined, which the others hold as well.
at::Tensor norm_with_missing_parts(const at::Tensor& shares, const Tensors& gradients) {
  const at::Tensor on_host = shares.cpu();
  const int parts = static_cast<int>(shares.size(0));
  at::Tensor sum = shares.select(1, 0).sum();
  for (int part = 0; part < parts; ++part) {
    if (on_host[part][1].item<double>() != 0.0) continue;
    sum += squares_of_part(gradients, part, parts, shares.device());
  }
  return sum.sqrt();
}

}  // namespace

double clip_on_device(const Peers& peers, const std::string& name, const Tensors& gradients,
                      GradientOwners owners, const at::Device& device, double max_norm) {
  const at::NoGradGuard no_grad;
  const bool parted = owners == GradientOwners::all;
  const at::Tensor shares = shares_of_all(
      peers, name,
      squares_of_part(gradients, parted ? peers.rank_in_set : 0, parted ? peers.size : 1, device));
  at::Tensor norm = shares.select(1, 0).sum().sqrt();
  if (!parted) {
    multiply_all(gradients, factor_of(norm, max_norm));
    return norm.item<double>();
  }
  const at::Tensor complete = shares.select(1, 1).sum() == peers.size;
  multiply_all(gradients, at::where(complete, factor_of(norm, max_norm), at::ones_like(norm)));
  const double known = at::where(complete, norm, at::full_like(norm, -1.0)).item<double>();
  if (known != -1.0) return known;
  norm = norm_with_missing_parts(shares, gradients);
  multiply_all(gradients, factor_of(norm, max_norm));
  return norm.item<double>();
}

}  // namespace hora::internal
