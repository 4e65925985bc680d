/// Whether a rank can work on a device.
#pragma once

#include <string>

#include "core/engine/engine.h"

namespace hora {

/// Throws Error(invalid_argument) "<what> ..." where `device`, which is not the CPU, is not this
/// rank's.
void check_device(const EngineParts& parts, const Device& device, const std::string& what,
                  const std::string& tensor = {});

}  // namespace hora
