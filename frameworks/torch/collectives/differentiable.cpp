#include "frameworks/torch/collectives/differentiable.h"

#include <ATen/core/DimVector.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

/// Kept by a recorded call for its gradients.
template <class Options>
struct Recorded : torch::CustomClassHolder {
  Recorded(const Context& its_context, const Options& its_options, const CallTensors& call)
      : context(its_context), options(its_options), is_group(call.is_group) {
    for (const torch::Tensor& tensor : call.tensors) {
      shapes.emplace_back(tensor.sizes().begin(), tensor.sizes().end());
    }
  }
  const Context& context;
  Options options;
  bool is_group;
  std::vector<at::DimVector> shapes;  ///< the inputs'
  std::vector<Rows> rows;             ///< the results'
};

/// The name of a backward collective derives from the forward's, so that backward is matched on all
/// ranks whatever the order; unnamed stays unnamed.
std::string backward_name(const std::string& name) {
  return name.empty() ? name : name + ".backward";
}

/// A collective of backward, recorded in turn where a graph of it is asked for.
template <class Forward, class Options>
Tensors run_backward(const Recorded<Forward>& forward, const Tensors& tensors, Options options,
                     std::span<const Rows> splits = {}) {
  options.name = backward_name(forward.options.name);
  options.process_set = forward.options.process_set;
  return results_as<Tensors>(run_collective(
      forward.context, {.tensors = tensors, .is_group = forward.is_group, .splits = splits},
      options));
}

void check_linear(const std::string& name, ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::average) return;
  refuse_tensor(name, "a reduction by " + std::string(name_of(op)) +
                          " has no gradient; expected sum or average, or a call under "
                          "torch::NoGradGuard");
}

// The gradients of the inputs, made of those of the results (collectives.h).

Tensors gradients_of(const Recorded<AllreduceOptions>& forward, const Tensors& given) {
  check_linear(forward.options.name, forward.options.op);
  return run_backward(forward, given, forward.options);
}

Tensors gradients_of(const Recorded<BroadcastOptions>& forward, const Tensors& given) {
  Tensors sums = run_backward(forward, given, AllreduceOptions{.op = ReduceOp::sum});
  if (forward.context.rank() == forward.options.root) return sums;
  for (torch::Tensor& each : sums) each = torch::zeros_like(each);
  return sums;
}

Tensors gradients_of(const Recorded<AllgatherOptions>& forward, const Tensors& given) {
  Tensors averages = run_backward(forward, given, AllreduceOptions{.op = ReduceOp::average});
  const auto rank_in_set = rank_in(forward.context, forward.options.process_set);
  for (std::size_t i = 0; i < averages.size(); ++i) {
    const auto own = forward.rows[i].begin() + rank_in_set;
    const std::int64_t first = std::accumulate(forward.rows[i].begin(), own, std::int64_t{0});
    // A copy: a view would keep all ranks' rows.
    averages[i] = averages[i].narrow(0, first, *own).clone().view(forward.shapes[i]);
  }
  return averages;
}

Tensors gradients_of(const Recorded<AlltoallOptions>& forward, const Tensors& given) {
  return run_backward(forward, given, forward.options, forward.rows);
}

Tensors gradients_of(const Recorded<ReduceScatterOptions>& forward, const Tensors& given) {
  const ReduceScatterOptions& options = forward.options;
  check_linear(options.name, options.op);
  const int ranks = options.op == ReduceOp::sum ? size_of(forward.context, options.process_set) : 1;
  Tensors scaled;
  for (const torch::Tensor& each : given) {
    scaled.push_back(each * (ranks * options.prescale * options.postscale));
  }
  return run_backward(forward, scaled, AllgatherOptions{});
}

template <class Options>
struct Differentiable : torch::autograd::Function<Differentiable<Options>> {
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList,
                         const CallTensors& call,
                         const c10::intrusive_ptr<Recorded<Options>>& recorded) {
    context->saved_data["recorded"] = c10::IValue::make_capsule(recorded);
    TensorResults results = start_collective(recorded->context, call, recorded->options)->wait();
    for (AlltoallResult& each : results) {
      recorded->rows.push_back(std::move(each.received_splits));
    }
    return results_as<Tensors>(std::move(results));
  }

  static Tensors backward(torch::autograd::AutogradContext* context, Tensors given) {
    const auto held = context->saved_data["recorded"].toCapsule();
    Tensors gradients = gradients_of(static_cast<const Recorded<Options>&>(*held), given);
    gradients.resize(gradients.size() + 2);  // `call` and `recorded` have none
    return gradients;
  }
};

}  // namespace

bool is_recorded(at::TensorList inputs) {
  return torch::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const auto& t) { return t.requires_grad(); });
}

template <class Options>
TensorResults run_collective(const Context& context, const CallTensors& call,
                             const Options& options) {
  if (!is_recorded(call.tensors)) return start_collective(context, call, options)->wait();
  const auto recorded = c10::make_intrusive<Recorded<Options>>(context, options, call);
  Tensors outputs = Differentiable<Options>::apply(call.tensors, call, recorded);
  TensorResults results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results.push_back({std::move(outputs[i]), recorded->rows[i]});
  }
  return results;
}

template TensorResults run_collective(const Context&, const CallTensors&, const AllreduceOptions&);
template TensorResults run_collective(const Context&, const CallTensors&, const BroadcastOptions&);
template TensorResults run_collective(const Context&, const CallTensors&, const AllgatherOptions&);
template TensorResults run_collective(const Context&, const CallTensors&, const AlltoallOptions&);
template TensorResults run_collective(const Context&, const CallTensors&,
                                      const ReduceScatterOptions&);

}  // namespace hora::internal
