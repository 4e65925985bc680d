/// Phases of the program in messages.
///
///     hora::note_phase(world, "epoch " + std::to_string(epoch) + ", validation");
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <string_view>

namespace HORA_EXPORT hora {

/// Notes what this rank does from now on, for errors and the flight record: 128 bytes are kept.
/// Throws Error(shut_down). Thread rule: any thread; the last writer wins.
void note_phase(const Context& context, std::string_view phase);

}  // namespace hora
