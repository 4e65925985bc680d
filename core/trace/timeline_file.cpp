#include "core/trace/timeline_file.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/new_file.h"

namespace hora {
namespace {

NewFile new_file(const std::string& path, int rank) {
  try {
    return NewFile(path);
  } catch (const Error& error) {
    throw Error(error.code(), "the timeline of rank " + std::to_string(rank) + ": " + error.what(),
                rank);
  }
}

/// errno is 0 before the first call that may fail.
std::string reason() {
  return errno == 0 ? std::string("unknown error") : std::generic_category().message(errno);
}

}  // namespace

TimelineFile::TimelineFile(std::string path, const TraceIdentity& identity, const ClockPair& start)
    : path_(std::move(path)), rank_(identity.rank) {
  const NewFile made = new_file(path_, rank_);
  errno = 0;
  file_.open(made.descriptor_path(), std::ios::trunc);
  file_ << '[';
  for (const std::string& json : header_json(identity, start)) add(json);
  if (file_.flush()) return;
  throw Error(ErrorCode::invalid_argument,
              "the timeline of rank " + std::to_string(rank_) + " cannot be written to " +
                  in_quotes(path_) + ": " + reason(),
              rank_);
}

void TimelineFile::add(const std::string& json) {
  file_ << (std::exchange(empty_, false) ? "\n" : ",\n") << json;
}

void TimelineFile::flush() {
  if (!problem_.empty()) return;
  file_.flush();
  if (!file_) problem_ = "writing the timeline " + in_quotes(path_) + " has failed: " + reason();
}

void TimelineFile::write(const EventBatch& batch, TraceTime time) {
  if (!problem_.empty()) return;
  errno = 0;
  for (const TraceRow& row : batch.rows) {
    const auto index = static_cast<RowIndex>(rows_.size());
    for (const std::string& json : row_json(row, index, rank_)) add(json);
    rows_.push_back(row);
  }
  for (const TraceEvent& event : batch.events) add(event_json(event, rows_, rank_));
  if (batch.dropped > dropped_) {
    dropped_ = batch.dropped;
    add(dropped_json(dropped_, time, rank_));
  }
  flush();
}

void TimelineFile::end(std::uint64_t dropped, TraceTime time) {
  errno = 0;
  add(end_json(dropped, time, rank_));
  file_ << "\n]\n";
  flush();
  file_.close();
}

}  // namespace hora
