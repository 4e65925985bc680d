/// hora's own log: to standard error, apart from the application's.
#pragma once

#include <hora/settings.h>
#include <spdlog/spdlog.h>

namespace hora::internal {

/// Thread rule: any thread.
spdlog::logger& log();

void set_log_level(LogLevel level);

}  // namespace hora::internal
