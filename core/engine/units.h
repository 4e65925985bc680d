/// From what is decided to what the data path runs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/engine/parts.h"
#include "core/engine/submissions.h"
#include "core/plan/bound_unit.h"

namespace hora {

/// The units of one set that are under way on this rank, in the order in which every rank starts
/// them. Thread rule: the thread that holds the engine's progress lock.
class Units {
 public:
  /// All outlive it.
  Units(const SetParts& parts, const EngineParts& engine, const SetMemory& memory,
        const Tracer& trace, ProcessSet set)
      : parts_(parts),
        engine_(engine),
        memory_(memory),
        trace_(trace),
        shares_device_(set != kWorld) {}

  /// Fuses what travels together, and hands it to the data path.
  void start(const DecidedBatch& batch);
  bool is_running() const { return !started_.empty(); }
  bool has_completed() const {
    return !started_.empty() && started_.front().number <= parts_.data_path->completed();
  }
  /// The number of the unit that is under way with this submission in it; 0: none is.
  std::uint64_t number_of(const Submission& submission) const;
  /// Of the oldest unit, which has_completed(): its submissions.
  std::vector<std::shared_ptr<Submission>> take_completed();

 private:
  struct Started {
    std::uint64_t number;
    std::vector<std::shared_ptr<Submission>> submissions;
  };

  BoundUnit bind(Unit unit, const DecidedBatch& batch);
  void bind_tensor(BoundUnit& bound, const TensorMemory& mine,
                   const std::vector<Location>& locations, bool on_host) const;
  void bind_exchange(BoundUnit& bound, const Submission& mine,
                     const std::vector<Location>& locations) const;

  const SetParts& parts_;
  const EngineParts& engine_;
  const SetMemory& memory_;
  const Tracer& trace_;
  std::deque<Started> started_;
  std::uint64_t number_ = 0;  ///< of the last one that was started
  bool shares_device_;        ///< from the first other process set on, in the order of units
};

}  // namespace hora
