// DistributedOptimizer::join(), of one optimizer or of several at once.
#include <hora/torch/collectives.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/optimizer_implementation.h"
#include "frameworks/torch/peers.h"

namespace hora {
using namespace internal;

std::vector<OptimizerImplementation*> OptimizerImplementation::together(
    const std::vector<DistributedOptimizer*>& optimizers, const std::string& user) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, user + ": " + what);
  };
  if (optimizers.empty()) refuse("no optimizer was given; expected at least one");
  std::vector<OptimizerImplementation*> all;
  for (const DistributedOptimizer* optimizer : optimizers) {
    if (optimizer == nullptr || !optimizer->implementation_) {
      refuse("optimizer " + std::to_string(all.size()) + " is null, or was moved from");
    }
    all.push_back(optimizer->implementation_.get());
    if (std::count(all.begin(), all.end(), all.back()) > 1) {
      refuse("optimizer " + std::to_string(all.size() - 1) + " was given before; expected once");
    }
    const Peers& first = all.front()->peers();
    const Peers& other = all.back()->peers();
    if (&first.context != &other.context || first.set != other.set) {
      refuse("optimizer " + std::to_string(all.size() - 1) +
             " averages over another process set than optimizer 0; expected one set, whose ranks "
             "decide together");
    }
  }
  return all;
}

void OptimizerImplementation::check_can_join(
    const std::vector<OptimizerImplementation*>& together) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_use, "DistributedOptimizer: join() " + why,
                peers_.context.rank());
  };
  if (shards_) refuse("with sharding: no rank would step a joined rank's share");
  if (broadcasts_buffers_) refuse("with option buffers: a joined rank cannot broadcast its own");
  if (hooked_) refuse("with a hook, whose collectives a joined rank does not know");
  if (scaler_ != nullptr) {
    for (const OptimizerImplementation* sharing : scaler_->optimizers()) {
      if (std::find(together.begin(), together.end(), sharing) != together.end()) continue;
      refuse(
          "without another optimizer of its GradScaler; hora::join(context, {&a, &b}) takes all");
    }
  }
}

int OptimizerImplementation::join(const std::vector<OptimizerImplementation*>& optimizers) {
  for (const OptimizerImplementation* optimizer : optimizers) {
    optimizer->check_can_join(optimizers);
    optimizer->averager_.check_in_step();
  }
  std::vector<std::string> names;
  for (OptimizerImplementation* optimizer : optimizers) {
    names.push_back(optimizer->name());
    if (optimizer->averager_.round_open()) optimizer->synchronize();
    optimizer->drop_gradients();
  }
  const Peers& peers = optimizers.front()->peers();
  const int last = hora::join(peers.context, peers.set);
  check_agreement(peers,
                  {"The optimizers given to join()",
                   "Every rank must join with the same ones, in the same order"},
                  "hora.join.optimizers", names);
  int most_trained = last;
  for (OptimizerImplementation* optimizer : optimizers)
    most_trained = optimizer->become_most_trained(last);
  return most_trained;
}

int OptimizerImplementation::become_most_trained(int last) {
  const Context& context = peers_.context;
  std::vector<std::int64_t> rounds(static_cast<std::size_t>(context.size()), 0);
  rounds[static_cast<std::size_t>(context.rank())] = rounds_;
  allreduce(context, view(rounds.data(), context.size()),
            {.name = name_ + ".join.rounds", .op = ReduceOp::sum, .process_set = peers_.set});
  const auto most = std::max_element(rounds.begin(), rounds.end());
  const bool is_last = rounds[static_cast<std::size_t>(last)] == *most;
  const int root = is_last ? last : static_cast<int>(most - rounds.begin());
  take_progress(root);
  JointBroadcast parameters(peers_, name_ + ".join", tensors_of(averager_.parameters()));
  parameters.begin(root);
  parameters.end();
  broadcast_optimizer_state(context, optimizer_, root, peers_.set);
  averager_.take_layout(root);
  averager_.restart_steps();
  rounds_ = steps_;
  return root;
}

void OptimizerImplementation::take_progress(int root) {
  const LossScale own = scaler_ != nullptr ? scaler_->loss_scale() : LossScale{};
  // Steps up to 2^53 are exact.
  std::array<double, 3> progress = {static_cast<double>(steps_), own.scale,
                                    static_cast<double>(own.finite_steps)};
  broadcast(peers_.context, view(progress.data(), progress.size()),
            {.name = name_ + ".join.progress", .root = root, .process_set = peers_.set});
  steps_ = static_cast<std::int64_t>(progress[0]);
  if (scaler_ != nullptr) scaler_->take({progress[1], static_cast<int>(progress[2])});
}

}  // namespace hora
