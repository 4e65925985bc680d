/// One named operation from submission to completion.
#pragma once

#include <hora/collectives.h>
#include <hora/error.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/engine/deadlines.h"
#include "core/engine/tensor_memory.h"
#include "core/flight/record_writer.h"
#include "core/negotiation/leader.h"
#include "core/negotiation/signature.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// A copy that shares nothing: std::runtime_error's own copies share their text, counted inside the
/// standard library where thread checkers cannot see it.
inline Error detached(const Error& error) {
  return {error.code(), std::string(error.what()), error.rank(), error.tensor()};
}

/// An operation that a user asks for.
struct Request {
  std::string_view name;  ///< outlives the call; empty: unnamed (see collectives.h)
  Signature signature;
  std::byte* data = nullptr;
  void* stream = nullptr;  ///< on a device: `data` is ready once it has reached this
  /// Likewise the caller's memory of an exchange's result, where that is on another stream.
  std::optional<void*> output_stream = std::nullopt;
  /// For exchanges: the length of `data` (which is host memory where they do not run on the
  /// device), the extents that this rank brings (BoundExchange::rows), and where the result goes.
  std::size_t bytes = 0;
  std::vector<std::int64_t> rows = {};
  std::shared_ptr<ExchangeResult> result = nullptr;
  /// The place of `result`, which lives as long, where it will lie in this rank's windows; else
  /// null.
  ResultPlace* result_place = nullptr;
  /// What is published to the node's ranks instead of where `data` lies.
  std::optional<Location> location = std::nullopt;
  /// See AllreduceOptions::timeout.
  std::chrono::milliseconds timeout{0};
};

class Submissions;
struct NameEntry;

struct Submission {
  enum State : std::uint32_t { kPending = 0, kDone = 1, kFailed = 2 };

  std::string name;
  Signature signature;
  Submissions* owner = nullptr;  ///< null of joined proxies
  TensorMemory memory;
  std::shared_ptr<ExchangeResult> result;
  std::shared_ptr<LastExtents> last_extents;  ///< the name's; null: it is no such exchange
  bool repeats = false;                       ///< BoundExchange::repeats
  std::vector<Location> peer_locations;       ///< of changes of the process sets: by local rank
  int number = 0;  ///< the result of such a change (the set), and of join (the last rank)

  // Guarded by the engine's table lock.
  NameEntry* entry = nullptr;  ///< in the NameTable, while this is the name's submission
  std::optional<Id> id;        ///< as which this rank is ready; none: reported by name
  bool decided = false;
  bool orphaned = false;         ///< its handle was dropped by an exception
  bool is_joined_proxy = false;  ///< of a rank that has joined; no handle knows it
  Duration submitted{};          ///< zero until it is announced
  Duration overdue_at{};
  Duration reported_overdue{};  ///< to the leader, first since it was answered; zero: never
  Duration answered{};          ///< the root has asked all ranks about it, the last time
  TimeLimit limit;
  Duration out_of_time_at = Duration::max();
  Duration notice_at = Duration::max();  ///< when it is reported to the leader; max(): it has been
  Duration decided_at{};
  RecordTicket record = kNoTicket;  ///< constant once it is announced

  std::atomic<std::uint32_t> state{kPending};
  std::optional<Error> error;  ///< written before `state` becomes kFailed

  /// As a new one, but for its name, its signature and its set: for the next call of that name.
  void renew() {
    memory = {};
    peer_locations.clear();
    number = 0;
    id.reset();
    repeats = decided = orphaned = false;
    submitted = overdue_at = reported_overdue = answered = decided_at = {};
    out_of_time_at = notice_at = Duration::max();
    record = kNoTicket;
    state.store(kPending, std::memory_order_relaxed);
    error.reset();
  }

  /// An exchange to which this rank brings other extents than to the name's last run, as far as
  /// those are known.
  bool is_resized(const SetMemory& set) const {
    return last_extents && !last_extents->are(set.topology.index_of(set.rank),
                                              ExchangeHeader::extents_of(memory.header()));
  }
  bool announced() const { return submitted != Duration{}; }
  bool finished() const { return state.load(std::memory_order_acquire) != kPending; }
};

/// The engine's clock.
inline Duration now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace hora::internal
