/// What a rank is doing, in the words of its program.
///
///     hora::note_phase(world, "epoch " + std::to_string(epoch) + ", validation");
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <string_view>

namespace HORA_EXPORT hora {

/// Notes what this rank is doing from here on, such as "epoch 3, step 120", for the messages that
/// say where a rank was when it failed, and for its flight record (HORA_RECORD_DIRECTORY). The
/// first 128 bytes are kept, until the next call. On rank 0 it is also the phase in which a rank
/// that comes last to the program's own collectives is counted (HORA_REPORT, horarun --watch):
/// without its numbers, in 32 bytes; the fourth and further such phases are counted as one. What
/// optimizers submit has phases of its own. Costs about as much as copying the text. Throws
/// Error(shut_down). Thread rule: any thread; of two at the same moment one prevails.
void note_phase(const Context& context, std::string_view phase);

}  // namespace hora
