/// Broadcast of modules' parameters and buffers.
///
///     hora::broadcast_parameters(world, *model);                // before the first step
///
/// Errors: collectives.h; where a parameter's shape or type differs between ranks, Error(mismatch)
/// names it. One that only some ranks have is waited for, and HORA_STALL_WARNING names it.
/// Thread rule: as the module.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <torch/nn/module.h>

namespace HORA_EXPORT hora {

/// Makes the parameters and buffers of every rank of the set equal to those of world rank `root`,
/// to the bit. Collective.
void broadcast_parameters(const Context& context, torch::nn::Module& module, int root = 0,
                          ProcessSet process_set = kWorld);
/// The buffers alone, such as BatchNorm's running statistics. Collective.
void broadcast_buffers(const Context& context, torch::nn::Module& module, int root = 0,
                       ProcessSet process_set = kWorld);

}  // namespace hora
