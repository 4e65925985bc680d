#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

namespace hora {

spdlog::logger& log() {
  // Not in spdlog's registry: the application may configure or drop what is there.
  static const auto logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "hora", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("[%H:%M:%S.%e] hora %^%l%$: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

void set_log_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return log().set_level(spdlog::level::debug);
    case LogLevel::info:
      return log().set_level(spdlog::level::info);
    case LogLevel::warning:
      return log().set_level(spdlog::level::warn);
    case LogLevel::error:
      return log().set_level(spdlog::level::err);
    case LogLevel::off:
      return log().set_level(spdlog::level::off);
  }
}

}  // namespace hora
