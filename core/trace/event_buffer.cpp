#include "core/trace/event_buffer.h"

#include <hora/printable.h>

#include <utility>

namespace hora {

EventBuffer::EventBuffer(std::size_t events, std::size_t rows)
    : capacity_(events), most_rows_(rows) {
  events_.reserve(capacity_);
}

std::optional<RowIndex> EventBuffer::row(RowGroup group, std::string_view name) {
  std::string key;
  key.reserve(name.size() + 1);
  key.push_back(static_cast<char>(group));
  key.append(name);
  if (const auto found = rows_.find(key); found != rows_.end()) return found->second;
  if (rows_.size() == most_rows_) return std::nullopt;
  const auto index = static_cast<RowIndex>(rows_.size());
  rows_.emplace(std::move(key), index);
  new_rows_.push_back({group, printable(name, kLongestQuotation)});
  return index;
}

void EventBuffer::push(const TraceEvent& event) {
  if (events_.size() == capacity_) return drop(1);
  events_.push_back(event);
}

void EventBuffer::take(EventBatch& batch) {
  batch.events.clear();
  batch.events.reserve(capacity_);
  batch.rows.clear();
  std::swap(batch.events, events_);
  std::swap(batch.rows, new_rows_);
  batch.dropped = dropped_;
}

}  // namespace hora
