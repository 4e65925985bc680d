#include "frameworks/torch/optimizer_implementation.h"

#include <utility>

namespace hora {
namespace {

std::vector<torch::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<torch::Tensor> tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

}  // namespace

DistributedOptimizer::Implementation::Implementation(const Context& context,
                                                     torch::optim::Optimizer& optimizer,
                                                     std::vector<Parameter> parameters,
                                                     const GradientAverager::Options& options)
    : context_(context),
      name_(options.name),
      optimizer_(optimizer),
      averager_(context, std::move(parameters), options),
      hooks_(
          tensors_of(averager_.parameters()),
          [this](std::size_t index) { averager_.before_gradient(index); },
          [this](std::size_t index) { averager_.after_gradient(index); }) {
  for (const Parameter& parameter : averager_.parameters()) {
    known_.insert(parameter.tensor.unsafeGetTensorImpl());
  }
}

void DistributedOptimizer::Implementation::zero_grad() {
  // Gradients given up before a step: peers may wait for the rest of this round.
  if (averager_.round_open()) synchronize();
  for (const Parameter& parameter : averager_.parameters()) {
    parameter.tensor.mutable_grad().reset();
  }
  hooks_.refresh();
  synchronized_ = false;
}

void DistributedOptimizer::Implementation::synchronize() {
  const GradientAverager::Cost cost = averager_.finish();
  statistics_.waited += cost.waited;
  statistics_.in_flight += cost.in_flight;
  hooks_.refresh();
  synchronized_ = true;
}

void DistributedOptimizer::Implementation::synchronize_once() {
  if (!synchronized_ || averager_.round_open()) synchronize();
}

void DistributedOptimizer::Implementation::step() {
  refuse_new_parameters();
  synchronize_once();
  synchronized_ = false;
  optimizer_.step();
  statistics_.steps += 1;
}

void DistributedOptimizer::Implementation::begin_unscaling(double factor) {
  if (unscales_) {
    throw Error(ErrorCode::invalid_use,
                "GradScaler: this optimizer has one already; destroy that before another is made",
                context_.rank());
  }
  change_unscaling(factor);
  unscales_ = true;
}

void DistributedOptimizer::Implementation::change_unscaling(double factor) {
  if (averager_.round_open()) {
    throw Error(ErrorCode::invalid_use,
                "GradScaler: constructed or updated between backward() and step(), when gradients "
                "scaled by another factor are under way; do it before backward()",
                context_.rank());
  }
  averager_.unscale_by(factor);
}

void DistributedOptimizer::Implementation::end_unscaling() noexcept {
  averager_.unscale_by(std::nullopt);
  unscales_ = false;
}

// Parameters added later would be stepped with this rank's own gradient: silently wrong.
void DistributedOptimizer::Implementation::refuse_new_parameters() const {
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (known_.contains(tensor.unsafeGetTensorImpl())) continue;
      throw Error(ErrorCode::invalid_argument,
                  "DistributedOptimizer: a parameter was added to the wrapped optimizer after "
                  "construction; add parameter groups first, then construct DistributedOptimizer");
    }
  }
}

}  // namespace hora
