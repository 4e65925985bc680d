#include "core/log.h"

#include <hora/printable.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

namespace hora {
namespace {

/// The message as one line, whatever names and values it holds.
class PrintableMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& line) override {
    const std::string text = printable({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<PrintableMessage>();
  }
};

std::unique_ptr<spdlog::formatter> formatter() {
  constexpr char kMessage = '*';
  auto made = std::make_unique<spdlog::pattern_formatter>();
  made->add_flag<PrintableMessage>(kMessage).set_pattern("[%H:%M:%S.%e] hora %^%l%$: %*");
  return made;
}

}  // namespace

spdlog::logger& log() {
  // Not in spdlog's registry: the application may configure or drop what is there.
  // Never destroyed: exit handlers still log.
  static auto& logger = *[] {
    auto made = std::make_unique<spdlog::logger>(
        "hora", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_formatter(formatter());
    made->set_level(spdlog::level::warn);
    return made.release();
  }();
  return logger;
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
