/// Which id is given up for a new name where all are in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/control_block/id.h"

namespace hora {

/// The clock, or second-chance, algorithm (F. J. Corbato, A Paging Experiment with the Multics
/// System, 1968), which comes near to least recently used: a hand goes round the slots; an id that
/// has run since the hand came by last, or since it was given, is passed over once, another is
/// given up. So a request for an id pays for the slots that the hand passes: each of them holds an
/// id that has run meanwhile, or is in use just now. The hand belongs to the
/// root alone, whose decisions say what is given up; others need not agree on what ran when. Pure.
/// Thread rule: one thread at a time.
class IdClock {
 public:
  explicit IdClock(int capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

  /// An id of a slot that was never in use, if any is left.
  std::optional<Id> unused() const {
    if (slots_.size() == capacity_) return std::nullopt;
    return make_id(static_cast<int>(slots_.size()), 0);
  }
  /// The next id of the same slot.
  static constexpr Id successor(Id id) {
    return make_id(slot_of(id), (generation_of(id) + 1) & 0xffffu);
  }
  /// Its slot holds this id from now on, which ran last as `last_run` says.
  void assign(Id id, std::uint64_t last_run) {
    const auto slot = static_cast<std::size_t>(slot_of(id));
    if (slot == slots_.size()) slots_.emplace_back();
    slots_[slot] = {id, last_run};
  }
  /// The first id not passed over for which give_up(id) is true; nothing after two rounds.
  /// last_run(id): a number that grows with each run.
  template <class LastRun, class GiveUp>
  std::optional<Id> next(LastRun&& last_run, GiveUp&& give_up) {
    for (std::size_t step = 0; step < 2 * slots_.size(); ++step) {
      Slot& slot = slots_[hand_];
      hand_ = (hand_ + 1) % slots_.size();
      const std::uint64_t run = last_run(slot.id);
      if (run != slot.seen_run) {
        slot.seen_run = run;
      } else if (give_up(slot.id)) {
        return slot.id;
      }
    }
    return std::nullopt;
  }

 private:
  struct Slot {
    Id id = 0;
    std::uint64_t seen_run = 0;  ///< when the hand came by last
  };
  std::size_t capacity_;
  std::vector<Slot> slots_;  ///< those that were ever in use
  std::size_t hand_ = 0;
};

}  // namespace hora
