/// Tensors of shapes and types that other ranks do not know, and the state of optimizers.
///
/// They travel as types, shapes, numbers and plain bytes, through objects.h, whose errors and rules
/// hold; what is no number, text or dense tensor is an Error(invalid_argument). Nothing is run.
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

/// The root's tensors on every rank, on the CPU, of any type. Other ranks' tensors are ignored.
std::vector<torch::Tensor> broadcast_object(const Context& context,
                                            const std::vector<torch::Tensor>& tensors,
                                            const BroadcastObjectOptions& options = {});

/// Every rank's tensors on every rank, on the CPU, in the order of the set's ranks.
std::vector<std::vector<torch::Tensor>> allgather_object(const Context& context,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         const AllgatherOptions& options = {});

/// Makes the state (momentum buffers, numbers of steps, ...) and the options (learning rates,
/// betas, ...) of every parameter group equal to the root's, to the bit; also where only the root
/// has made steps, or only others have. For LibTorch's optimizers, and for others that implement
/// save() and load(). State comes to the device of its parameter. Collective over the process set,
/// which `root`, a world rank, is in.
///
/// Throws the same Error(mismatch) on every rank where optimizers are of different classes or their
/// groups hold other parameters. Thread rule: as the optimizer.
void broadcast_optimizer_state(const Context& context, torch::optim::Optimizer& optimizer,
                               int root = 0, ProcessSet process_set = kWorld);

}  // namespace hora
