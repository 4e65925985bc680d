/// What DistributedOptimizer's constructor asks of its arguments, and makes of them.
#pragma once

#include <hora/distributed_optimizer.h>

#include <vector>

#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/peers.h"

namespace hora {

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
/// Error(mismatch) on every rank; in a bucket it would be a matter of lengths.
void check_ranks_agree(const Peers& peers, const std::vector<Parameter>& parameters,
                       const DistributedOptimizerOptions& options,
                       const GradientAverager::Options& averaging);

}  // namespace hora
