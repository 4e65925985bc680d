#include "frameworks/torch/collectives/differentiable.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace hora {
namespace {

using Forward = std::function<Tensors()>;
using Backward = std::function<Tensors(const Tensors&)>;

/// As a value that the graph can hold.
struct HeldBackward : torch::CustomClassHolder {
  explicit HeldBackward(Backward function) : run(std::move(function)) {}
  Backward run;
};

struct Recorded : torch::autograd::Function<Recorded> {
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList,
                         const Forward& run, Backward& backward) {
    context->saved_data["backward"] =
        c10::IValue::make_capsule(c10::make_intrusive<HeldBackward>(std::move(backward)));
    return run();
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const auto held = context->saved_data["backward"].toCapsule();
    Tensors results = static_cast<HeldBackward&>(*held).run(gradients);
    results.resize(results.size() + 2);  // the functions have none
    return results;
  }
};

}  // namespace

bool is_recorded(const Tensors& inputs) {
  return torch::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const auto& t) { return t.requires_grad(); });
}

Tensors differentiable(const Tensors& inputs, const Forward& forward, Backward backward) {
  if (!is_recorded(inputs)) return forward();
  return Recorded::apply(at::TensorList(inputs), forward, backward);
}

}  // namespace hora
