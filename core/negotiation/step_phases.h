/// Parts of a training step, to which collectives belong. They tell where in its step a rank loses
/// the time by which it is late.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/sync.h"

namespace hora::internal {

/// Below kStepPhases.
using PhaseIndex = std::uint8_t;
inline constexpr std::size_t kStepPhases = 8;

/// Up to the first bucket of gradients: a rank that is late there has lost its time in its input or
/// in the forward pass.
inline constexpr PhaseIndex kForwardPhase = 0;
inline constexpr PhaseIndex kBackwardPhase = 1;   ///< the other buckets
inline constexpr PhaseIndex kOptimizerPhase = 2;  ///< norms, and ends of rounds
/// Of the program's own collectives, while it has noted nothing. Those above are what it has noted.
inline constexpr PhaseIndex kTrainingPhase = 3;

/// Of a collective that hora itself has named (core/collective_names.h); none: it is the program's,
/// and belongs to what that has noted. Pure.
std::optional<PhaseIndex> phase_of(std::string_view collective);

/// A text of fixed size, in bytes of any kind; those behind its end are 0.
struct PhaseName {
  std::array<char, 32> bytes{};
  std::string_view text() const {
    return {bytes.data(),
            std::min(std::string_view(bytes.data(), bytes.size()).find('\0'), bytes.size())};
  }
  bool operator==(const PhaseName&) const = default;
};

/// What the program says that it is doing (hora::note_phase), as phases: numbers are left out, so
/// that "epoch 3" and "epoch 4" are one. Beyond a few all others are one phase. Does not allocate.
/// Thread rule: any thread.
class NotedPhases {
 public:
  /// The program's own collectives belong to it from here on; empty: to kTrainingPhase.
  void note(std::string_view text) noexcept;
  PhaseIndex current() const noexcept { return current_.load(std::memory_order_relaxed); }
  /// Of any index; empty where nothing belongs to it yet.
  PhaseName name(PhaseIndex phase) const noexcept;

 private:
  static constexpr std::size_t kNamed = kStepPhases - kTrainingPhase - 2;

  std::atomic<PhaseIndex> current_{kTrainingPhase};
  mutable Mutex mutex_;
  std::array<PhaseName, kNamed> names_ HORA_GUARDED_BY(mutex_) = {};
  std::size_t count_ HORA_GUARDED_BY(mutex_) = 0;
};

}  // namespace hora::internal
