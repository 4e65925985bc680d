/// hora's log for sources that know LibTorch: some of its builds bring an fmt of their own, which
/// does not go together with the one that spdlog's headers need.
#pragma once

#include <string>

namespace hora {

/// As log().warn() in log.h. Thread rule: any thread.
void log_warning(const std::string& text);

}  // namespace hora
