#include "examples/vision/logs/event_writer.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <array>
#include <system_error>

#include "examples/vision/logs/event.pb.h"
#include "examples/vision/logs/record.h"

namespace vision {
namespace {

namespace fs = std::filesystem;

std::string host_name() {
  std::array<char, 256> name{};
  // The last byte stays 0: a name that is cut short need not end with one.
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data()
                                                                           : "localhost";
}

// Unused so far in `folder`, but for a writer that takes it first.
fs::path unused_path(const fs::path& folder, EventWriter::Time now) {
  fs::create_directories(folder);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch());
  // Readers order the files of a folder by name, hence the width.
  const fs::path first = folder / fmt::format("events.out.tfevents.{:010}.{}.{}", seconds.count(),
                                              host_name(), getpid());
  fs::path path = first;
  for (int number = 1; fs::exists(path); ++number) {
    path = first;
    path += fmt::format(".{}", number);
  }
  return path;
}

std::string record_of(const logs::Event& event) {
  return to_record(event.SerializeAsString());
}

}  // namespace

EventWriter::EventWriter(const fs::path& folder, std::chrono::seconds flush_every, Time now)
    : file_(unused_path(folder, now), LogFile::Existing::refused),
      flush_every_(flush_every),
      flushed_(now) {
  logs::Event event;
  event.set_wall_time(seconds_of(now));
  event.set_file_version("brain.Event:2");
  file_.append(record_of(event));
  file_.flush();
}

void EventWriter::add(const std::string& tag, std::int64_t step, double value, Time now) {
  logs::Event event;
  event.set_wall_time(seconds_of(now));
  event.set_step(step);
  logs::Summary::Value& scalar = *event.mutable_summary()->add_value();
  scalar.set_tag(tag);
  scalar.set_simple_value(static_cast<float>(value));
  file_.append(record_of(event));
  // A clock that was set back counts as an interval.
  if (now < flushed_ || now - flushed_ >= flush_every_) {
    file_.flush();
    flushed_ = now;
  }
}

}  // namespace vision
