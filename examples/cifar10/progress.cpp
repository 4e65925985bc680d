#include "examples/cifar10/progress.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

namespace cifar10 {

std::string to_minutes(double seconds) {
  const long total = std::lround(std::max(0.0, seconds));
  const long minutes = total / 60;
  return minutes < 60 ? fmt::format("{}:{:02}", minutes, total % 60)
                      : fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, total % 60);
}

std::string to_text(const ProgressState& state) {
  return fmt::format("epoch {}/{}  step {}/{}  loss {:.3f}  {:.0f} images/s  {} left", state.epoch,
                     state.epochs, state.step, state.steps, state.loss, state.images_per_second,
                     to_minutes(state.seconds_left));
}

ProgressStyle choose_style(ProgressStyle wanted, int file_descriptor) {
  if (wanted != ProgressStyle::automatic) {
    return wanted;
  }
  winsize size{};
  const bool terminal = isatty(file_descriptor) == 1 &&
                        ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return terminal ? ProgressStyle::live : ProgressStyle::plain;
}

void Progress::line(const std::string& text) {
  if (out_ == nullptr) {
    return;
  }
  // Return to the line's start, erase to its end.
  *out_ << (live_line_open_ ? "\r\x1b[K" : "") << text << std::endl;
  live_line_open_ = false;
}

void Progress::update(const ProgressState& state, Time now) {
  const bool live = style_ == ProgressStyle::live;
  const std::chrono::milliseconds pause(live ? 200 : 10'000);
  if (out_ == nullptr || (last_.has_value() && now - *last_ < pause)) {
    return;
  }
  // Plain output is silent for the first seconds: short runs print results only.
  const bool first = !last_.has_value();
  last_ = now;
  if (live) {
    *out_ << "\r\x1b[K" << to_text(state) << std::flush;
    live_line_open_ = true;
  } else if (!first) {
    line(to_text(state));
  }
}

}  // namespace cifar10
