#include <ATen/core/grad_mode.h>
#include <hora/torch/optim.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "frameworks/torch/optim/device_updates.h"
#include "frameworks/torch/optim/parameter_update.h"

namespace hora::optim {
namespace {

using namespace internal;
using torch::optim::Optimizer;

/// While it lives the groups hold other parameters.
class OtherParameters {
 public:
  OtherParameters(Optimizer& optimizer, std::vector<std::vector<at::Tensor>> others)
      : optimizer_(optimizer), parameters_(std::move(others)) {
    swap();
  }
  ~OtherParameters() { swap(); }
  OtherParameters(const OtherParameters&) = delete;
  OtherParameters& operator=(const OtherParameters&) = delete;

 private:
  void swap() noexcept {
    auto& groups = optimizer_.param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) std::swap(groups[g].params(), parameters_[g]);
  }

  Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> parameters_;
};

/// The updates of one step(): on the CPU at once, on GPUs together at its end.
class StepUpdates {
 public:
  explicit StepUpdates(Optimizer& optimizer) : optimizer_(optimizer) {}

  /// False where LibTorch has to do it.
  bool step(const torch::optim::OptimizerOptions& options, const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!has_plain_memory(parameter) || !lies_like(gradient, parameter)) return false;
    if (!parameter.is_cpu() && !device_updates(parameter.device())) return false;
    const auto update = begin_update(optimizer_, options, parameter);
    if (!update) return false;
    if (parameter.is_cpu()) {
      const std::byte* const gradients[] = {static_cast<const std::byte*>(gradient.data_ptr())};
      update->run(gradients);
    } else {
      on_device_->add(*update, parameter);
    }
    end_update(*update, parameter);
    return true;
  }
  void finish() {
    if (on_device_) on_device_->run();
  }

 private:
  bool device_updates(const at::Device& device) {
    if (!on_device_) on_device_ = make_device_updates(device);
    return on_device_ != nullptr;
  }

  Optimizer& optimizer_;
  std::unique_ptr<DeviceUpdates> on_device_;
};

/// `step_by_libtorch`: of the parameters that the groups hold when it is called.
torch::Tensor step_once(Optimizer& optimizer, const Optimizer::LossClosure& closure,
                        const std::function<void()>& step_by_libtorch) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> others;
  bool has_others = false;
  StepUpdates updates(optimizer);
  for (auto& group : optimizer.param_groups()) {
    others.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (updates.step(group.options(), parameter)) continue;
      others.back().push_back(parameter);
      has_others = true;
    }
  }
  updates.finish();
  if (has_others) {
    const OtherParameters guard(optimizer, std::move(others));
    step_by_libtorch();
  }
  return loss;
}

}  // namespace

torch::Tensor SGD::step(LossClosure closure) {
  return step_once(*this, closure, [this] { torch::optim::SGD::step(); });
}

torch::Tensor Adam::step(LossClosure closure) {
  return step_once(*this, closure, [this] { torch::optim::Adam::step(); });
}

torch::Tensor AdamW::step(LossClosure closure) {
  return step_once(*this, closure, [this] { torch::optim::AdamW::step(); });
}

}  // namespace hora::optim
