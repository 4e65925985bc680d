#include "tests/support/logged_lines.h"

#include <spdlog/sinks/ringbuffer_sink.h>

#include <thread>
#include <vector>

#include "core/base/log.h"

namespace hora::internal::test {

constexpr std::size_t kLines = 100;

struct LoggedLines::Sink {
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> lines =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kLines);
};

LoggedLines::LoggedLines() : sink_(std::make_unique<Sink>()) {
  log().sinks().push_back(sink_->lines);
}

LoggedLines::~LoggedLines() {
  std::erase(log().sinks(), sink_->lines);
}

std::vector<std::string> LoggedLines::with(const std::string& text) const {
  std::vector<std::string> lines = sink_->lines->last_formatted();
  std::erase_if(lines,
                [&](const std::string& line) { return line.find(text) == std::string::npos; });
  return lines;
}

bool LoggedLines::await(const std::string& text, std::chrono::seconds patience) const {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!have(text) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return have(text);
}

}  // namespace hora::internal::test
