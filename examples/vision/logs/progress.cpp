#include "examples/vision/logs/progress.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace vision {
namespace {

constexpr std::size_t usual_columns = 80;
constexpr std::string_view erase_to_end = "\x1b[K";

// Nothing where there is no terminal or it does not say.
std::optional<std::size_t> columns_of(int file_descriptor) {
  struct stat file {};
  const char* const of_horarun = std::getenv("HORARUN_COLUMNS");
  if (of_horarun != nullptr && fstat(file_descriptor, &file) == 0 && S_ISFIFO(file.st_mode)) {
    return std::strtoul(of_horarun, nullptr, 10);
  }
  winsize size{};
  if (ioctl(file_descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

// "NAME: " in front of what is of a rank or of all; nothing where there is one rank.
std::string owner(const TrainingStep& step, const char* name) {
  return step.ranks > 1 ? name + std::string(": ") : "";
}

std::string share_text(const char* name, double part, double whole) {
  return whole > 0 ? fmt::format("{} {:.0f}%", name, 100 * part / whole) : "";
}

void add_known(std::optional<double>& sum, const std::optional<double>& value) {
  if (value.has_value()) sum = sum.value_or(0) + *value;
}

std::string join(const auto& fields) {
  std::string text;
  for (const std::string& field : fields) {
    if (!field.empty()) {
      text += (text.empty() ? "" : "  ") + field;
    }
  }
  return text;
}

}  // namespace

void StepSums::add(const TrainingStep& step) {
  ++steps_;
  for (const auto value :
       {&TrainingStep::loss, &TrainingStep::learning_rate, &TrainingStep::images_per_second,
        &TrainingStep::seconds, &TrainingStep::data_seconds, &TrainingStep::exposed_seconds}) {
    sum_.*value += step.*value;
  }
  add_known(sum_.top1, step.top1);
  add_known(sum_.top5, step.top5);
  sum_.gpu_bytes = std::max(sum_.gpu_bytes, step.gpu_bytes);  // none is the least
}

double StepSums::mean(double TrainingStep::*value) const {
  return steps_ == 0 ? 0 : sum_.*value / static_cast<double>(steps_);
}

std::optional<double> StepSums::mean(std::optional<double> TrainingStep::*value) const {
  const std::optional<double>& sum = sum_.*value;
  return sum.has_value() ? std::optional(*sum / static_cast<double>(steps_)) : std::nullopt;
}

std::string to_minutes(double seconds) {
  const long total = std::lround(std::max(0.0, seconds));
  const long minutes = total / 60;
  return minutes < 60 ? fmt::format("{}:{:02}", minutes, total % 60)
                      : fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, total % 60);
}

std::string to_live_text(const TrainingStep& step, const StepSums& epoch, std::size_t columns) {
  const double seconds = epoch.mean(&TrainingStep::seconds);
  std::array<std::string, 8> fields{
      fmt::format("epoch {}/{}", step.epoch, step.epochs),
      fmt::format("{}/{}", step.step, step.steps),
      fmt::format("{}loss {:.3f}", owner(step, "rank 0"), step.loss),
      step.top1 ? fmt::format("top-1 {:.1f}%", *epoch.mean(&TrainingStep::top1)) : "",
      fmt::format("{}{:.0f} img/s", owner(step, "all"), step.images_per_second),
      share_text("data", epoch.mean(&TrainingStep::data_seconds), seconds),
      share_text("comm", epoch.mean(&TrainingStep::exposed_seconds), seconds),
      to_minutes(step.seconds_left) + " left"};
  std::string text = join(fields);
  for (const std::size_t least_important : {6, 5, 3, 4, 2, 1}) {
    if (text.size() <= columns) break;
    fields[least_important].clear();
    text = join(fields);
  }
  return text.substr(0, columns);
}

std::string to_plain_text(const TrainingStep& step, const StepSums& epoch) {
  const auto accuracy = [&](const char* name, std::optional<double> TrainingStep::*value) {
    return step.*value
               ? fmt::format("{} {:6.2f} ({:6.2f})", name, *(step.*value), *epoch.mean(value))
               : "";
  };
  const std::array<std::string, 8> fields{
      fmt::format("Epoch: [{}][{:{}}/{}]", step.epoch, step.step,
                  fmt::formatted_size("{}", step.steps), step.steps),
      fmt::format("{}Time {:.3f} ({:.3f})", owner(step, "rank 0"), step.seconds,
                  epoch.mean(&TrainingStep::seconds)),
      fmt::format("Data {:.3f} ({:.3f})", step.data_seconds,
                  epoch.mean(&TrainingStep::data_seconds)),
      fmt::format("Comm {:.3f} ({:.3f})", step.exposed_seconds,
                  epoch.mean(&TrainingStep::exposed_seconds)),
      fmt::format("Loss {:.4f} ({:.4f})", step.loss, epoch.mean(&TrainingStep::loss)),
      accuracy("Acc@1", &TrainingStep::top1),
      accuracy("Acc@5", &TrainingStep::top5),
      fmt::format("{}{:.0f} images/s  {} left", owner(step, "all"), step.images_per_second,
                  to_minutes(step.seconds_left))};
  return join(fields);
}

ProgressStyle choose_style(ProgressStyle wanted, int file_descriptor) {
  if (wanted != ProgressStyle::automatic) return wanted;
  return columns_of(file_descriptor).has_value() ? ProgressStyle::live : ProgressStyle::plain;
}

std::size_t terminal_columns(int file_descriptor) {
  return columns_of(file_descriptor).value_or(usual_columns);
}

void Progress::line(const std::string& text) {
  if (out_ == nullptr) return;
  std::string bytes = live_line_open_ ? "\r" : "";
  bytes += text;
  bytes += live_line_open_ ? erase_to_end : "";
  *out_ << bytes << std::endl;
  live_line_open_ = false;
}

bool Progress::due(const TrainingStep& step, Time now) {
  const bool live = options_.style == ProgressStyle::live;
  if (!live && options_.every > 0) {
    return step.step == 1 || step.step % options_.every == 0;
  }
  const bool first = !last_.has_value();
  const std::chrono::milliseconds pause(live ? 200 : 10'000);
  if (!first && now - *last_ < pause) return false;
  last_ = now;
  return live || !first;
}

void Progress::update(const TrainingStep& step, Time now) {
  if (out_ == nullptr) return;
  if (step.epoch != epoch_) {
    epoch_ = step.epoch;
    sums_ = {};
  }
  sums_.add(step);
  if (!due(step, now)) return;
  if (options_.style == ProgressStyle::live) {
    const std::size_t columns = options_.columns ? options_.columns() : usual_columns;
    // Written over in one piece, the rest erased after it: nothing is empty in between. The last
    // column stays free, for some terminals go to the next line there.
    const std::string bytes = "\r" +
                              to_live_text(step, sums_, std::max<std::size_t>(columns, 2) - 1) +
                              std::string(erase_to_end);
    *out_ << bytes << std::flush;
    live_line_open_ = true;
  } else {
    line(to_plain_text(step, sums_));
  }
}

}  // namespace vision
