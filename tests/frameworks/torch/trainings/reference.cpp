#include "tests/frameworks/torch/trainings/reference.h"

#include <algorithm>
#include <cmath>

#include "tests/frameworks/torch/averaging_model.h"

namespace hora::internal::test {
namespace {

torch::ScalarType wire_type(const Training& training, torch::ScalarType type) {
  switch (training.compression) {
    case Compression::float16:
      return torch::kHalf;
    case Compression::bfloat16:
      return torch::kBFloat16;
    case Compression::none:
      break;
  }
  return type;
}

bool is_finite(const torch::Tensor& tensor) {
  return tensor.isfinite().all().item<bool>();
}

}  // namespace

Reference::Reference(const Context& world, const Training& training, std::vector<int> members)
    : world_(world),
      training_(training),
      members_(std::move(members)),
      network_(training),
      scale_(training.initial_scale),
      norms_(static_cast<std::size_t>(training.optimizers)) {
  for (int i = 0; i < training_.optimizers; ++i) optimizers_.push_back(network_.make_optimizer(i));
}

std::vector<torch::Tensor> Reference::gradients_of(int rank, int step) {
  for (torch::Tensor parameter : network_.parameters()) parameter.mutable_grad().reset();
  const auto& share =
      training_.shares[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
  for (std::size_t pass = 0; pass < share.passes.size(); ++pass) {
    (network_.loss(step, rank, pass) * scale_).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : network_.parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

torch::Tensor Reference::average(const std::function<torch::Tensor(int)>& of_rank) const {
  const double scale =
      training_.op == ReduceOp::sum ? 1.0 : 1.0 / static_cast<double>(members_.size());
  return sum_model(world_, members_, scale, of_rank);
}

void Reference::step(int step) {
  network_.freeze(step);
  std::vector<std::vector<torch::Tensor>> of_rank(static_cast<std::size_t>(training_.ranks));
  for (const int rank : members_) {
    if (training_.takes_part(rank, step)) {
      of_rank[static_cast<std::size_t>(rank)] = gradients_of(rank, step);
    }
  }
  stepped_ = true;
  for (std::size_t i = 0; i < network_.parameters().size(); ++i) {
    torch::Tensor parameter = network_.parameters()[i];
    const auto wire = wire_type(training_, parameter.scalar_type());
    const auto gradient = [&](int rank) {
      const auto& own = of_rank[static_cast<std::size_t>(rank)];
      return own.empty() ? torch::Tensor() : own[i];
    };
    parameter.mutable_grad().reset();
    if (std::none_of(members_.begin(), members_.end(),
                     [&](int rank) { return gradient(rank).defined(); })) {
      continue;
    }
    const torch::Tensor sum = average([&](int rank) {
      return (gradient(rank).defined() ? gradient(rank) : torch::zeros_like(parameter)).to(wire);
    });
    stepped_ = stepped_ && is_finite(sum);
    parameter.mutable_grad() = (sum.to(parameter.scalar_type()) / scale_).detach();
  }
  for (int i = 0; i < training_.optimizers; ++i) clip(i);
  if (stepped_ || !training_.has(Feature::grad_scaler)) {
    for (auto& optimizer : optimizers_) optimizer->step();
  }
  adapt_scale();
}

void Reference::clip(int optimizer) {
  double squares = 0.0;
  for (const torch::Tensor& parameter : network_.parameters_of(optimizer)) {
    const torch::Tensor& gradient = parameter.grad();
    if (gradient.defined()) squares += gradient.to(torch::kDouble).square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  norms_[static_cast<std::size_t>(optimizer)] = norm;
  if (!training_.has(Feature::clipping) || !(norm > training_.max_norm)) return;
  for (torch::Tensor parameter : network_.parameters_of(optimizer)) {
    if (parameter.grad().defined())
      parameter.mutable_grad().mul_(training_.max_norm / (norm + 1e-6));
  }
}

void Reference::adapt_scale() {
  if (!training_.has(Feature::grad_scaler)) return;
  if (!stepped_) {
    scale_ *= 0.5;
    finite_steps_ = 0;
  } else if (++finite_steps_ == training_.growth_interval) {
    scale_ *= 2.0;
    finite_steps_ = 0;
  }
}

}  // namespace hora::internal::test
