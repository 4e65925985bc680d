#include <hora/torch/distributed_optimizer.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/api/internals.h"
#include "core/base/text.h"
#include "frameworks/torch/optimizer/optimizer_checks.h"
#include "frameworks/torch/optimizer/optimizer_implementation.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;

double OptimizerStatistics::hidden_share() const {
  if (in_flight.count() <= 0) return 0.0;
  const double share =
      1.0 - static_cast<double>(waited.count()) / static_cast<double>(in_flight.count());
  return std::clamp(share, 0.0, 1.0);
}

DistributedOptimizer::DistributedOptimizer(
    const Context& context, torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
    const DistributedOptimizerOptions& options) {
  start_tensor_arena(context);
  share_device_memory(context);
  const Peers peers = peers_of(context, options.process_set);
  check_optimizer(peers, optimizer, options);
  std::vector<Parameter> parameters = select_parameters(context, optimizer, named_parameters);
  const std::string name =
      std::string(kGradientsName) +
      std::to_string(Access::next_instance_number(context, options.process_set));
  auto averaging = averaging_options(peers, parameters, options, name);
  if (options.sharding >= Sharding::fused && can_fuse_update(peers, optimizer, parameters)) {
    averaging.buckets.averaging.fused = std::make_shared<FusedRounds>(peers, name + ".fused");
  }
  check_ranks_agree(peers, parameters, options, averaging);
  implementation_ = std::make_unique<OptimizerImplementation>(
      peers, optimizer, std::move(parameters), averaging, options);
}

DistributedOptimizer::~DistributedOptimizer() {
  OptimizerImplementation::destroy(std::move(implementation_));
}
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;
DistributedOptimizer& DistributedOptimizer::operator=(DistributedOptimizer&& other) noexcept {
  OptimizerImplementation::destroy(
      std::exchange(implementation_, std::move(other.implementation_)));
  return *this;
}

OptimizerImplementation& DistributedOptimizer::implementation() const {
  if (implementation_) return *implementation_;
  throw Error(ErrorCode::invalid_use,
              "DistributedOptimizer: it was moved from; use the one that it was moved to");
}

void DistributedOptimizer::zero_grad() {
  implementation().zero_grad();
}

void DistributedOptimizer::synchronize() {
  implementation().synchronize();
}

void DistributedOptimizer::step() {
  implementation().step();
}

torch::Tensor DistributedOptimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure) return implementation().step(closure);
  implementation().step();
  return {};
}

DistributedOptimizer::Guard DistributedOptimizer::no_sync() {
  return Guard(implementation().no_sync().take());
}

DistributedOptimizer::Guard DistributedOptimizer::skip_synchronize() {
  return Guard(implementation().skip_synchronize().take());
}

void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  implementation().set_backward_passes(passes);
}

double DistributedOptimizer::clip_grad_norm_(double max_norm) {
  return implementation().clip_grad_norm(max_norm);
}

void DistributedOptimizer::complete_parameters() {
  implementation().complete_parameters();
}

int DistributedOptimizer::join() {
  return OptimizerImplementation::join({&implementation()});
}

int join(const Context& context, const std::vector<DistributedOptimizer*>& optimizers) {
  const auto joined = OptimizerImplementation::together(optimizers, "join()");
  if (&joined.front()->peers().context != &context) {
    throw Error(ErrorCode::invalid_argument,
                "join(): the optimizers were constructed with another Context", context.rank());
  }
  return OptimizerImplementation::join(joined);
}

torch::optim::Optimizer& DistributedOptimizer::wrapped() {
  return implementation().optimizer();
}

OptimizerStatistics DistributedOptimizer::statistics() const {
  return implementation().statistics();
}

void DistributedOptimizer::reset_statistics() {
  implementation().statistics() = {};
}

}  // namespace hora
