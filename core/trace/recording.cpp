#include <hora/printable.h>

#include <string>
#include <utility>

#include "core/trace/trace.h"

namespace hora::internal {

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

namespace {

std::string_view name_of(ChunkStage stage) {
  switch (stage) {
    case ChunkStage::local_in:
      return "local_in";
    case ChunkStage::cross:
      return "cross";
    case ChunkStage::local_out:
      return "local_out";
    case ChunkStage::ready:
    case ChunkStage::done:
      break;
  }
  return {};
}

/// `name` as it is shown: with its set beside it, unless that is the world.
std::string beside_set(std::string_view name, ProcessSet set) {
  std::string text(name);
  if (set != kWorld) text += " (set " + to_string(set) + ")";
  return text;
}

TraceEvent span(std::string_view name, TraceTime begin, TraceTime end) {
  TraceEvent event;
  event.name = name;
  event.begin = begin;
  event.duration = end - begin;
  return event;
}

}  // namespace

void Recording::push(RowGroup group, std::string_view name, TraceEvent event) {
  const auto row = buffer_.row(group, name);
  if (!row) return buffer_.drop(1);
  event.row = *row;
  buffer_.push(event);
}

void Recording::marked(const TensorKey& tensor, std::string_view mark, TraceTime time) {
  TraceEvent event = span(mark, time, time);
  event.kind = TraceEvent::Kind::mark;
  push(RowGroup::tensors, beside_set(tensor.name, tensor.set), event);
}

void Recording::negotiated(const TensorKey& tensor, TraceTime submitted, TraceTime decided,
                           const LastRank& last) {
  TraceEvent event = span("negotiate", submitted, decided);
  event.last = last;
  push(RowGroup::tensors, beside_set(tensor.name, tensor.set), event);
}

void Recording::planned(UnitKey key, const UnitFacts& facts,
                        const std::vector<TensorFacts>& tensors) {
  OpenUnit& unit = units_[key];
  unit.facts = facts;
  for (const TensorFacts& tensor : tensors) {
    const auto row = buffer_.row(RowGroup::tensors, beside_set(tensor.name, key.set));
    if (row) {
      unit.tensors.push_back({*row, tensor.bytes, tensor.decided});
    } else {
      buffer_.drop(2);
    }
  }
}

void Recording::started(UnitKey key, TraceTime time) {
  const auto found = units_.find(key);
  if (found == units_.end() || found->second.started) return;
  found->second.started = time;
  for (const OpenTensor& tensor : found->second.tensors) {
    TraceEvent event = span("queue", tensor.decided, time);
    event.row = tensor.row;
    event.unit = key;
    buffer_.push(event);
  }
}

void Recording::completed(UnitKey key, TraceTime time) {
  started(key, time);  // where it had nothing to do on this rank
  const auto found = units_.find(key);
  if (found == units_.end()) return;
  const OpenUnit& unit = found->second;
  for (const OpenTensor& tensor : unit.tensors) {
    TraceEvent event = span(unit.facts.operation, *unit.started, time);
    event.row = tensor.row;
    event.unit = key;
    event.bytes = tensor.bytes;
    event.facts = unit.facts;
    buffer_.push(event);
  }
  units_.erase(found);
}

void Recording::chunk(const ChunkFacts& chunk, ChunkStage stage, TraceTime time) {
  if (stage == ChunkStage::local_in && chunk.offset == 0) started(chunk.unit, time);
  const std::pair place{chunk.unit.set, chunk.slot};
  if (const auto former = stages_.find(place); former != stages_.end()) {
    TraceEvent event = span(name_of(former->second.stage), former->second.begin, time);
    event.subject = subject(chunk.unit);
    event.unit = chunk.unit;
    event.bytes = chunk.bytes;
    event.offset = chunk.offset;
    push(RowGroup::chunks, beside_set("chunk slot " + std::to_string(chunk.slot), chunk.unit.set),
         event);
    stages_.erase(former);
  }
  const bool is_work = !name_of(stage).empty();
  if (is_work) stages_.emplace(place, OpenStage{stage, time});
}

void Recording::waited(std::string_view thread, const TensorKey& tensor, TraceTime begin,
                       TraceTime end) {
  TraceEvent event = span("wait", begin, end);
  event.subject =
      buffer_.row(RowGroup::tensors, beside_set(tensor.name, tensor.set)).value_or(kNoRow);
  push(RowGroup::threads, thread, event);
}

RowIndex Recording::subject(UnitKey unit) const {
  const auto found = units_.find(unit);
  if (found == units_.end() || found->second.tensors.empty()) return kNoRow;
  return found->second.tensors.front().row;
}

void Recording::device(const DevicePhase& phase, RowIndex subject, TraceTime begin, TraceTime end) {
  TraceEvent event = span(phase.name, begin, end);
  event.subject = subject;
  event.unit = phase.unit;
  event.bytes = phase.bytes;
  push(RowGroup::device, phase.row, event);
}

}  // namespace hora::internal
