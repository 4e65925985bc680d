/// Tensors of shapes and types that other ranks do not know, and optimizers' state. Rules and
/// errors: objects.h; what is no number, text or dense tensor is an Error(invalid_argument).
/// Nothing is run.
///
///     if (world.rank() == 0) torch::load(adam, "adam.pt");      // a checkpoint that rank 0 has
///     hora::broadcast_optimizer_state(world, adam);
#pragma once

#include <hora/export.h>
#include <hora/objects.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <vector>

namespace HORA_EXPORT hora {

/// Returns the root's tensors on every rank, on the CPU; other ranks' are ignored.
std::vector<torch::Tensor> broadcast_object(const Context& context,
                                            const std::vector<torch::Tensor>& tensors,
                                            const BroadcastObjectOptions& options = {});

/// Returns every rank's tensors, on the CPU, in the order of the set's ranks.
std::vector<std::vector<torch::Tensor>> allgather_object(const Context& context,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         const AllgatherOptions& options = {});

/// Makes state and options of every parameter group those of world rank `root`, to the bit, whoever
/// has made steps; state comes to its parameter's device. For LibTorch's optimizers and others with
/// save() and load(). Collective. Throws the same Error(mismatch) on every rank where classes or
/// groups' parameters differ. Thread rule: as the optimizer.
void broadcast_optimizer_state(const Context& context, torch::optim::Optimizer& optimizer,
                               int root = 0, ProcessSet process_set = kWorld);

}  // namespace hora
