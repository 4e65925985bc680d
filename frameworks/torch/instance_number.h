/// Tells the optimizers of one context apart.
#pragma once

#include <hora/context.h>

#include <cstdint>

namespace hora {

/// 0, 1, 2, ... in the order of calls on this context: equal on all ranks where they construct in
/// one order. Thread rule: any thread.
std::uint32_t next_instance_number(const Context& context);

}  // namespace hora
