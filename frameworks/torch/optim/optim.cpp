#include "frameworks/torch/optim/optim.h"

#include <ATen/Parallel.h>
#include <hora/torch/optim.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>

#include "frameworks/torch/optimizer/parameters.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

using namespace torch::optim;

struct LibTorchRounding {
  Rounding addition = Rounding::separate;  ///< of at::add() with a factor
  Rounding square = Rounding::separate;    ///< of at::addcmul()
};

/// Enough for the vector registers' code, and for what follows it.
constexpr std::int64_t kElements = 67;

// (1 + e)^2 - 1 = 2 e + e^2: the last term is lost where the square is rounded before the
// subtraction.
template <class T>
LibTorchRounding find_out(c10::ScalarType type) {
  const at::NoGradGuard no_grad;
  const double e = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  const at::Tensor factor = at::full({kElements}, 1 + e, type);
  const at::Tensor minus_one = at::full({kElements}, -1.0, type);
  const auto fuses = [&](const at::Tensor& result) {
    return result.ne(2 * e).all().template item<bool>() ? Rounding::fused : Rounding::separate;
  };
  return {fuses(at::add(minus_one, factor, 1 + e)),
          fuses(at::addcmul(minus_one, factor, factor, 1.0))};
}

/// LibTorch's own for elementwise operations: below, one thread is faster.
constexpr std::int64_t kGrain = 32768;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

ParameterUpdate update_of(const at::Tensor& parameter) {
  ParameterUpdate update;
  update.type = *to_data_type(parameter.scalar_type());
  update.memory.parameter = bytes_of(parameter);
  update.count = static_cast<std::size_t>(parameter.numel());
  return update;
}

/// For float32 and float64: LibTorch's kernels for GPUs, AVX2, AVX-512 and NEON fuse, those for
/// other CPUs (and for ATEN_CPU_CAPABILITY=default) do not. Found out by the operations themselves,
/// once. Thread rule: any thread.
LibTorchRounding rounding_of(const at::Tensor& parameter) {
  static const LibTorchRounding single = find_out<float>(at::kFloat);
  static const LibTorchRounding wide = find_out<double>(at::kDouble);
  if (!parameter.is_cpu()) return {.addition = Rounding::fused, .square = Rounding::fused};
  return parameter.scalar_type() == at::kDouble ? wide : single;
}

template <class State>
State* state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(key_of(parameter));
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

template <class State>
State* new_state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  optimizer.state()[key_of(parameter)] = std::make_unique<State>();
  return state_of<State>(optimizer, parameter);
}

bool can_update_sgd(Optimizer& optimizer, const SGDOptions& options, const at::Tensor& parameter) {
  const auto* state = state_of<SGDParamState>(optimizer, parameter);
  return options.momentum() == 0 || state == nullptr ||
         lies_like(state->momentum_buffer(), parameter);
}

ParameterUpdate begin_sgd(Optimizer& optimizer, const SGDOptions& options,
                          const at::Tensor& parameter) {
  SgdStep step{.rate = options.lr(),
               .momentum = options.momentum(),
               .dampening = options.dampening(),
               .weight_decay = options.weight_decay(),
               .nesterov = options.nesterov(),
               .rounding = rounding_of(parameter).addition};
  ParameterUpdate update = update_of(parameter);
  if (step.momentum != 0) {
    auto* state = state_of<SGDParamState>(optimizer, parameter);
    step.first = state == nullptr;
    if (step.first) {
      state = new_state_of<SGDParamState>(optimizer, parameter);
      state->momentum_buffer(at::empty_like(parameter));
    }
    update.memory.state[0] = bytes_of(state->momentum_buffer());
  }
  update.step = step;
  return update;
}

template <class State, class Options>
bool can_update_adam(Optimizer& optimizer, const Options& options, const at::Tensor& parameter) {
  const auto* state = state_of<State>(optimizer, parameter);
  return state == nullptr ||
         (lies_like(state->exp_avg(), parameter) && lies_like(state->exp_avg_sq(), parameter) &&
          (!options.amsgrad() || lies_like(state->max_exp_avg_sq(), parameter)));
}

template <class State, class Options>
ParameterUpdate begin_adam(Optimizer& optimizer, const Options& options,
                           const at::Tensor& parameter, bool decoupled) {
  auto* state = state_of<State>(optimizer, parameter);
  if (state == nullptr) {
    state = new_state_of<State>(optimizer, parameter);
    state->exp_avg(at::zeros_like(parameter));
    state->exp_avg_sq(at::zeros_like(parameter));
    if (options.amsgrad()) state->max_exp_avg_sq(at::zeros_like(parameter));
  }
  state->step(state->step() + 1);
  const auto [beta1, beta2] = options.betas();
  const double correction1 = 1 - std::pow(beta1, state->step());
  const double correction2 = 1 - std::pow(beta2, state->step());
  const LibTorchRounding rounding = rounding_of(parameter);
  ParameterUpdate update = update_of(parameter);
  const bool decays = options.weight_decay() != 0;
  update.step = AdamStep{
      .rate = options.lr() / correction1,
      .root = std::sqrt(correction2),
      .beta1 = beta1,
      .beta2 = beta2,
      .epsilon = options.eps(),
      .weight_decay = decoupled ? 0 : options.weight_decay(),
      .decay = decoupled && decays ? 1 - options.lr() * options.weight_decay() : 1,
      .amsgrad = options.amsgrad(),
      .rounding = rounding.addition,
      .square_rounding = rounding.square,
  };
  update.memory.state[0] = bytes_of(state->exp_avg());
  update.memory.state[1] = bytes_of(state->exp_avg_sq());
  if (options.amsgrad()) update.memory.state[2] = bytes_of(state->max_exp_avg_sq());
  return update;
}

}  // namespace

void ParameterUpdate::run(std::span<const std::byte* const> gradients, Scales scales,
                          std::span<std::byte* const> copies) const {
  UpdateMemory whole = memory;
  whole.gradients = gradients;
  whole.scales = scales;
  whole.copies = copies;
  at::parallel_for(0, static_cast<std::int64_t>(count), kGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     std::visit(
                         [&](const auto& values) {
                           update(type, values, whole, static_cast<std::size_t>(begin),
                                  static_cast<std::size_t>(end));
                         },
                         step);
                   });
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_cpu() || tensor.is_cuda()) &&
         tensor.layout() == at::kStrided &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble) &&
         tensor.is_non_overlapping_and_dense() && !tensor.is_neg() && !tensor._is_zerotensor();
}

bool takes_one_pass(const at::Tensor& tensor) {
  return has_plain_memory(tensor) && tensor.is_cpu();
}

bool lies_like(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!has_plain_memory(tensor) || tensor.device() != parameter.device() ||
      tensor.scalar_type() != parameter.scalar_type() || tensor.sizes() != parameter.sizes()) {
    return false;
  }
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != parameter.stride(d)) return false;
  }
  return true;
}

bool can_update(Optimizer& optimizer, const OptimizerOptions& options,
                const at::Tensor& parameter) {
  if (!has_plain_memory(parameter)) return false;
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) {
    return can_update_sgd(optimizer, *sgd, parameter);
  }
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) {
    return can_update_adam<AdamParamState>(optimizer, *adam, parameter);
  }
  const auto* adamw = dynamic_cast<const AdamWOptions*>(&options);
  return adamw != nullptr && can_update_adam<AdamWParamState>(optimizer, *adamw, parameter);
}

std::optional<ParameterUpdate> begin_update(Optimizer& optimizer, const OptimizerOptions& options,
                                            const at::Tensor& parameter) {
  if (!can_update(optimizer, options, parameter)) return std::nullopt;
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) {
    return begin_sgd(optimizer, *sgd, parameter);
  }
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) {
    return begin_adam<AdamParamState>(optimizer, *adam, parameter, /*decoupled=*/false);
  }
  return begin_adam<AdamWParamState>(optimizer, static_cast<const AdamWOptions&>(options),
                                     parameter, /*decoupled=*/true);
}

// LibTorch's SGD writes through data(), which autograd does not see.
void end_update(const ParameterUpdate& update, const at::Tensor& parameter) {
  if (std::holds_alternative<AdamStep>(update.step)) note_written(parameter);
}

}  // namespace hora::internal

namespace hora::optim {
namespace {

using namespace internal;
using torch::optim::Optimizer;

/// Steps a parameter: on the CPU at once, on a GPU with the others when `on_device` is run. False
/// where LibTorch has to do it.
bool step_one(Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
              const at::Tensor& parameter, std::unique_ptr<DeviceUpdates>& on_device) {
  const at::Tensor& gradient = parameter.grad();
  if (!has_plain_memory(parameter) || !lies_like(gradient, parameter)) return false;
  if (!parameter.is_cpu() && !on_device) on_device = make_device_updates(parameter.device());
  if (!parameter.is_cpu() && !on_device) return false;
  const auto update = begin_update(optimizer, options, parameter);
  if (!update) return false;
  if (parameter.is_cpu()) {
    const std::byte* const gradients[] = {static_cast<const std::byte*>(gradient.data_ptr())};
    update->run(gradients);
  } else {
    on_device->add(*update, parameter);
  }
  end_update(*update, parameter);
  return true;
}

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
  std::unique_ptr<DeviceUpdates> on_device;
  auto& groups = optimizer.param_groups();
  for (auto& group : groups) {
    others.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (step_one(optimizer, group.options(), parameter, on_device)) continue;
      others.back().push_back(parameter);
      has_others = true;
    }
  }
  if (on_device) on_device->run();
  if (!has_others) return loss;
  const auto swap = [&] {
    for (std::size_t g = 0; g < groups.size(); ++g) std::swap(groups[g].params(), others[g]);
  };
  swap();
  try {
    step_by_libtorch();
  } catch (...) {
    swap();
    throw;
  }
  swap();
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
