#include <hora/torch.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "frameworks/torch/agreement.h"
#include "frameworks/torch/data_type.h"
#include "frameworks/torch/optimizer_implementation.h"
#include "frameworks/torch/parameter_list.h"

namespace hora {
namespace {

using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

[[noreturn]] void refuse(const std::string& what, const std::string& parameter = {}) {
  throw Error(ErrorCode::invalid_argument, "DistributedOptimizer: " + what, -1, parameter);
}

void refuse_repeated_closures(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    refuse(
        "LBFGS calls backward() again inside step(), where ranks would not average alike; use an "
        "optimizer that takes one gradient a step, such as SGD or Adam");
  }
}

void check_averageable(const Context& context, const Parameter& parameter,
                       const torch::Device& device) {
  const torch::Tensor& tensor = parameter.tensor;
  const auto fail = [&](const std::string& what) {
    refuse("parameter '" + parameter.name + "' " + what, parameter.name);
  };
  if (tensor.layout() != torch::kStrided) fail("is sparse; expected a dense one");
  if (tensor.device() != device) {
    fail("is on " + tensor.device().str() + ", and others on " + device.str() +
         ": all must be on one device");
  }
  if (!device.is_cpu() && device != to_torch(context.device())) {
    fail("is on " + device.str() + ", but this rank averages on the CPU" +
         (context.device().kind == DeviceKind::cpu
              ? std::string(" only")
              : " and on " + to_torch(context.device()).str() + " only") +
         ": use hora::local_device()");
  }
  const auto type = to_data_type(tensor.scalar_type());
  if (!type || !is_floating_point(*type)) {
    fail(std::string("has type ") + torch::toString(tensor.scalar_type()) +
         "; expected float16, bfloat16, float32 or float64");
  }
}

// The named parameters that the optimizer's groups hold.
std::vector<Parameter> select(const Context& context, torch::optim::Optimizer& optimizer,
                              const NamedParameters& named) {
  std::vector<NamedIdentity> identities;
  for (const auto& item : named) {
    if (!item.value().defined()) refuse("parameter '" + item.key() + "' is undefined", item.key());
    identities.push_back({item.key(), item.value().unsafeGetTensorImpl()});
  }
  std::vector<std::vector<const void*>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& members = groups.emplace_back();
    for (const auto& tensor : group.params()) members.push_back(tensor.unsafeGetTensorImpl());
  }
  const auto selected = match_parameters(identities, groups);
  if (!selected) refuse(selected.error());
  std::vector<Parameter> parameters;
  for (const std::size_t index : *selected) {
    parameters.push_back({named[index].key(), named[index].value()});
    check_averageable(context, parameters.back(), parameters.front().tensor.device());
  }
  return parameters;
}

std::size_t bucket_bytes(const Context& context, const DistributedOptimizerOptions& options,
                         bool on_host) {
  if (options.bucket_bytes != 0) return options.bucket_bytes;
  if (context.settings().bucket_size != 0) return context.settings().bucket_size;
  return std::size_t{on_host && context.cross_size() == 1 ? 4U : 25U} << 20U;
}

// Refused here, where the parameter can be named; in a bucket it would be a matter of lengths.
void check_ranks_agree(const Context& context, const std::vector<Parameter>& parameters,
                       const GradientAverager::Options& options) {
  std::vector<std::string> lines{"buckets of " + std::to_string(options.bucket_bytes) + " bytes, " +
                                 std::string(name_of(options.op)) + ", compression " +
                                 std::string(name_of(options.compression))};
  for (const Parameter& parameter : parameters) {
    const torch::Tensor& tensor = parameter.tensor;
    lines.push_back(describe(parameter.name, to_data_type(tensor.scalar_type()).value(),
                             tensor.sizes().vec(), tensor.strides().vec()));
  }
  check_agreement(context,
                  {"DistributedOptimizer's parameters", "Every rank must build the same model"},
                  options.name + ".parameters", lines);
}

}  // namespace

double OptimizerStatistics::hidden_share() const {
  if (in_flight.count() <= 0) return 0.0;
  const double share =
      1.0 - static_cast<double>(waited.count()) / static_cast<double>(in_flight.count());
  return std::clamp(share, 0.0, 1.0);
}

DistributedOptimizer::DistributedOptimizer(const Context& context,
                                           torch::optim::Optimizer& optimizer,
                                           const NamedParameters& named_parameters,
                                           const DistributedOptimizerOptions& options) {
  refuse_repeated_closures(optimizer);
  std::vector<Parameter> parameters = select(context, optimizer, named_parameters);
  const GradientAverager::Options averaging{
      "hora.gradients." + std::to_string(context.next_instance_number()), options.op,
      bucket_bytes(context, options,
                   parameters.empty() || parameters.front().tensor.device().is_cpu()),
      options.compression};
  check_ranks_agree(context, parameters, averaging);
  implementation_ =
      std::make_unique<Implementation>(context, optimizer, std::move(parameters), averaging);
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&&) noexcept = default;

void DistributedOptimizer::zero_grad() {
  implementation_->zero_grad();
}

void DistributedOptimizer::synchronize() {
  implementation_->synchronize();
}

void DistributedOptimizer::step() {
  implementation_->step();
}

torch::optim::Optimizer& DistributedOptimizer::wrapped() {
  return implementation_->optimizer();
}

OptimizerStatistics DistributedOptimizer::statistics() const {
  return implementation_->statistics();
}

void DistributedOptimizer::reset_statistics() {
  implementation_->statistics() = {};
}

}  // namespace hora
