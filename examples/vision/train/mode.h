/// `--mode`: how many processes and GPUs train one model. Without LibTorch.
#pragma once

#include "examples/vision/train/choices.h"

namespace vision {

/// Throws std::runtime_error where this mode does not train with so many ranks: it says what to do.
void check_mode(Mode mode, int ranks);

}  // namespace vision
