/// LibTorch's CPU tensors in memory that the ranks of the node share.
#pragma once

#include <hora/context.h>

namespace hora::internal {

/// From now on until the context's shutdown(), where the settings want it (arena_use.h): every CPU
/// tensor of TensorArena::kLeastBytes or more that LibTorch allocates, in any thread, lies in an
/// arena, as long as that has room. Others, and those of a forked child, are allocated as before.
/// Tensors may outlive the context. Does nothing the second time. Where the arena cannot be had, or
/// the program has an allocator of its own with a higher priority, tensors are copied: a warning
/// says so where the setting is `on`. Thread rule: no other thread allocates tensors during the
/// first call of the process.
void start_tensor_arena(const Context& context);

/// Whether the byte at `data` lies in the arena that is open: the node's ranks reach it. Thread
/// rule: any thread.
bool in_tensor_arena(const void* data);

/// Whether start_tensor_arena() has one in mind: the same on all ranks, whether or not it could be
/// had.
bool wants_tensor_arena(const Context& context);

}  // namespace hora::internal
