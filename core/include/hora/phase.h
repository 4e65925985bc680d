/// What a rank is doing, in the words of its program.
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <string_view>

namespace HORA_EXPORT hora {

/// Notes what this rank is doing from here on, such as "epoch 3, step 120", for the messages that
/// say where a rank was when it failed, and for its flight record (HORA_RECORD_DIRECTORY). The
/// first 128 bytes are kept, until the next call. Costs about as much as copying the text. Throws
/// Error(shut_down). Thread rule: any thread; of two at the same moment one prevails.
void note_phase(const Context& context, std::string_view phase);

}  // namespace hora
