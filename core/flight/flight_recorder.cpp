#include "core/flight/flight_recorder.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include "core/base/log.h"
#include "core/flight/record_reader.h"

namespace hora::internal {
namespace {

bool is_off(const char* variable) {
  return variable && std::string_view(variable) == "off";
}

bool is_watched(const char* variable) {
  return variable && std::string_view(variable) == "watched";
}

std::optional<RecordMemory> memory_of(const char* variable) {
  if (is_off(variable)) return std::nullopt;
  if (variable && !is_watched(variable)) {
    auto given = RecordMemory::open(variable);
    if (given) return std::move(*given);
    log().warn("{}={}: {}; this rank keeps its record to itself", kRecordVariable, variable,
               given.error());
  }
  auto own = RecordMemory::anonymous();
  if (own) return std::move(*own);
  log().warn("there is no flight record on this rank: {}", own.error());
  return std::nullopt;
}

}  // namespace

FlightRecorder::FlightRecorder(const char* variable)
    : memory_(memory_of(variable)), counts_arrivals_(!is_off(variable)) {
  if (memory_) writer_ = RecordWriter(memory_->layout());
  if (memory_ && is_watched(variable)) memory_->layout().arrivals.wanted.store(1);
  writer_.begin();
}

std::int64_t FlightRecorder::guard() const noexcept {
  return memory_ ? std::max<std::int64_t>(0, memory_->layout().header.guard.load()) : 0;
}

void FlightRecorder::write_failures_to(const std::string& folder) {
  if (folder.empty() || !memory_ || guard() > 0) return;
  if (const auto made = make_record_folder(folder); !made) {
    throw Error(ErrorCode::invalid_setting, "HORA_RECORD_DIRECTORY: " + made.error());
  }
  folder_ = folder;
}

void FlightRecorder::failed(const Error& error) noexcept {
  writer_.fail(error.what(), error.code());
  write_once();
}

void FlightRecorder::failed_elsewhere(const Error& error) noexcept {
  writer_.fail(error.what(), error.code(), /*failed_elsewhere=*/true);
  write_once();
}

void FlightRecorder::failed(const std::string& cause) noexcept {
  writer_.fail(cause);
  write_once();
}

void FlightRecorder::write_once() noexcept {
  if (folder_.empty() || written_.exchange(true)) return;
  try {
    const auto record = read_record(memory_->layout(), record_now());
    const auto path = record ? write_record(*record, folder_) : tl::unexpected(record.error());
    if (path) {
      log().error("what this rank did last is in {}", *path);
    } else {
      log().warn("what this rank did last is lost: {}", path.error());
    }
  } catch (const std::exception&) {
    // Neither the record nor a message can be written; the failure itself is reported elsewhere.
  }
}

}  // namespace hora::internal
