/// Broadcast of modules' parameters and buffers. Thread rule: as the module.
///
///     hora::broadcast_parameters(world, *model);                // before the first step
///
/// Errors: collectives.h; other shapes or types on a rank are an Error(mismatch) that names the
/// parameter. One that only some ranks have is waited for, and HORA_STALL_WARNING names it.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <torch/nn/module.h>

namespace HORA_EXPORT hora {

/// Makes parameters and buffers on every rank of the set those of world rank `root`, to the bit.
/// Collective.
void broadcast_parameters(const Context& context, torch::nn::Module& module, int root = 0,
                          ProcessSet process_set = kWorld);
/// Likewise the buffers alone, such as BatchNorm's running statistics.
void broadcast_buffers(const Context& context, torch::nn::Module& module, int root = 0,
                       ProcessSet process_set = kWorld);

}  // namespace hora
