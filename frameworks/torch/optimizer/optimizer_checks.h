/// Checks of the arguments of DistributedOptimizer's constructor, and what it makes of them.
#pragma once

#include <hora/torch/distributed_optimizer.h>

#include <vector>

#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// It calls its closure several times a step, and compares the results (LBFGS).
bool evaluates_again(const torch::optim::Optimizer& optimizer);

/// Throws Error(invalid_argument) for options that are not for this optimizer, and warns of one
/// that does nothing with it.
void check_optimizer(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const DistributedOptimizerOptions& options);

/// The named parameters that the optimizer's groups hold, in order of registration. Throws as
/// DistributedOptimizer says.
std::vector<Parameter> select_parameters(
    const Context& context, torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, torch::Tensor>& named);

/// Each throws Error(invalid_argument) naming the option.
void check_backward_passes(int passes);
GradientAverager::Options averaging_options(const Peers& peers,
                                            const std::vector<Parameter>& parameters,
                                            const DistributedOptimizerOptions& options,
                                            const std::string& name);

/// Collective: the same parameters, buffers and options on all ranks? Else the same
/// Error(mismatch) on every rank; bucket by bucket only lengths would differ.
void check_ranks_agree(const Peers& peers, const std::vector<Parameter>& parameters,
                       const DistributedOptimizerOptions& options,
                       const GradientAverager::Options& averaging);

}  // namespace hora::internal
