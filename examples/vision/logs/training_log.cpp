#include "examples/vision/logs/training_log.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "examples/vision/logs/event.pb.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void cut_behind_lines(const fs::path& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  fs::resize_file(path, text.rfind('\n') + 1);  // 0 without a line
}

fs::path path_in(const fs::path& folder, EventWriter::Time now) {
  fs::create_directories(folder);
  std::array<char, 256> host{};
  // The last byte stays 0: a name that is cut short need not end with one.
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  // Readers order the files of a folder by name, hence the width.
  return folder /
         fmt::format("events.out.tfevents.{:010}.{}.{}",
                     std::chrono::floor<std::chrono::seconds>(now.time_since_epoch()).count(),
                     host.data(), getpid());
}

// Since 1970.
double seconds_of(EventWriter::Time time) {
  // A double does not hold the nanoseconds of half a century.
  const auto whole = std::chrono::floor<std::chrono::seconds>(time);
  return static_cast<double>(whole.time_since_epoch().count()) +
         std::chrono::duration<double>(time - whole).count();
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes += static_cast<char>((number >> (8 * i)) & 0xff);
  }
  return bytes;
}

// CRC-32C as RFC 3720 (section 12.1) has it, masked: a CRC over bytes that hold their own CRC would
// say little.
std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

// The TFRecord of `event`: its length, the length's CRC, the event, its CRC (TensorFlow's guide
// "TFRecord and tf.train.Example").
std::string to_record(const logs::Event& event) {
  const std::string data = event.SerializeAsString();
  const std::string length = little_endian(std::uint64_t{data.size()});
  return length + little_endian(masked_crc32c(length)) + data + little_endian(masked_crc32c(data));
}

// A whole line at a time: a reader never sees half of one.
void write_line(LogFile& file, const Json& json) {
  // A path in the data's name may be no UTF-8.
  file.append(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.flush();
}

struct Value {
  const char* key;  // of JSON
  const char* tag;  // of TensorBoard
  std::optional<double> value;
};

void add_known(Json& json, std::span<const Value> values) {
  for (const Value& each : values) {
    if (each.value) json[each.key] = *each.value;
  }
}

void add_known(EventWriter& events, std::int64_t step, std::span<const Value> values,
               EventWriter::Time now) {
  for (const Value& each : values) {
    if (each.value) events.add(each.tag, step, *each.value, now);
  }
}

}  // namespace

LogFile::LogFile(fs::path path, bool continued) : path_(std::move(path)) {
  if (fs::is_fifo(path_)) {
    throw std::system_error(std::make_error_code(std::errc::not_supported),
                            "A FIFO might never be read: " + path_.string());
  }
  const bool goes_on = continued && fs::exists(path_);
  if (goes_on) cut_behind_lines(path_);
  file_.open(path_, goes_on ? std::ios::binary | std::ios::app : std::ios::binary);
  check("Cannot open");
}

void LogFile::append(std::string_view bytes) {
  file_ << bytes;
  check("Cannot write to");
}

void LogFile::flush() {
  file_.flush();
  check("Cannot write to");
}

void LogFile::check(const char* what) const {
  if (file_) return;
  throw std::system_error(errno, std::generic_category(), what + (" " + path_.string()));
}

EventWriter::EventWriter(const fs::path& folder, Time now)
    : file_(path_in(folder, now)), flushed_(now) {
  logs::Event event;
  event.set_wall_time(seconds_of(now));
  event.set_file_version("brain.Event:2");
  file_.append(to_record(event));
  file_.flush();
}

void EventWriter::add(const std::string& tag, std::int64_t step, double value, Time now) {
  logs::Event event;
  event.set_wall_time(seconds_of(now));
  event.set_step(step);
  logs::Summary::Value& scalar = *event.mutable_summary()->add_value();
  scalar.set_tag(tag);
  scalar.set_simple_value(static_cast<float>(value));
  file_.append(to_record(event));
  // A clock that was set back counts as an interval.
  if (now < flushed_ || now - flushed_ >= std::chrono::seconds(10)) {
    file_.flush();
    flushed_ = now;
  }
}

TrainingLog::TrainingLog(const LogTargets& targets) : every_(targets.every) {
  if (!targets.json.empty()) json_.emplace(targets.json, targets.append);
  if (!targets.tensorboard.empty()) events_.emplace(targets.tensorboard);
}

void TrainingLog::run(const TrainingRun& run) {
  images_a_step_ = run.batch * static_cast<std::size_t>(run.ranks);
  if (run.resumed) steps_before_ = run.resumed->epochs * static_cast<std::int64_t>(run.steps);
  if (!json_) return;
  Json json{{"kind", "run"},      {"ranks", run.ranks},   {"nodes", run.nodes},
            {"batch", run.batch}, {"epochs", run.epochs}, {"steps", run.steps},
            {"data", run.data},   {"model", run.model}};
  if (run.resumed) {
    json["resumed_epoch"] = run.resumed->epochs;
    json["resumed_step"] = run.resumed->steps;
  }
  write_line(*json_, json);
}

void TrainingLog::step(const TrainingStep& step, Time now) {
  epoch_ = step.epoch;
  step_ = static_cast<std::int64_t>(step.step);
  entry_.add(step);
  whole_.add(step);
  if (entry_.steps() < every_ && step.step != step.steps) return;
  const auto mean = [&](auto value) { return entry_.mean(value); };
  const Value values[]{
      {"loss", "loss/training", mean(&TrainingStep::loss)},
      {"top1", "top1/training", mean(&TrainingStep::top1)},
      {"top5", "top5/training", mean(&TrainingStep::top5)},
      {"learning_rate", "learning_rate", mean(&TrainingStep::learning_rate)},
      {"images_per_second", "images_per_second", mean(&TrainingStep::images_per_second)},
      {"seconds", "step_seconds/all", mean(&TrainingStep::seconds)},
      {"data_seconds", "step_seconds/data", mean(&TrainingStep::data_seconds)},
      {"exposed_seconds", "step_seconds/exposed_communication",
       mean(&TrainingStep::exposed_seconds)},
      {"gpu_bytes", "gpu_memory/peak_bytes", entry_.sum().gpu_bytes}};
  entry_ = {};
  if (json_) {
    Json json{{"kind", "step"}, {"epoch", step.epoch}, {"step", step.step}};
    add_known(json, values);
    write_line(*json_, json);
  }
  if (events_) add_known(*events_, steps_before_ + step_, values, now);
}

void TrainingLog::epoch(const EpochResult& result, Time now) {
  steps_before_ += step_;
  const Value values[]{{"loss", "loss/epoch", result.loss},
                       {"top1", "top1/validation", result.top1},
                       {"top5", "top5/validation", result.top5}};
  if (json_) {
    Json json{{"kind", "epoch"}, {"epoch", epoch_}, {"loss", nullptr}};
    add_known(json, values);
    const TrainingStep& sum = whole_.sum();
    json.update(
        {{"steps", whole_.steps()},
         {"images_per_second", static_cast<double>(whole_.steps() * images_a_step_) / sum.seconds},
         {"seconds", sum.seconds},
         {"data_seconds", sum.data_seconds},
         {"exposed_seconds", sum.exposed_seconds},
         {"validation_seconds", result.validation_seconds}});
    write_line(*json_, json);
  }
  if (events_) {
    add_known(*events_, steps_before_, values, now);
    events_->flush();
  }
  whole_ = {};
  entry_ = {};
}

}  // namespace vision
