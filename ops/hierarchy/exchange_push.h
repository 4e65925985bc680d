/// What ranks of one node put into one another's results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"
#include "ops/hierarchy/exchange_site.h"

namespace hora {

/// Who pushes must know where the results are. Those that are as their ranks expected are known
/// from the start; if one is not, everybody tells the place of its result in a round of the desk.
/// All ranks of the node decide that alike, from the same headers.
/// Thread rule: the thread that holds the engine's lock.
class ExchangePush {
 public:
  /// Somebody pushes.
  static bool is_needed(const BoundUnit& unit);

  /// Where it is needed. `result`: mine, allocated. Unit and site outlive it.
  ExchangePush(const BoundUnit& unit, ExchangeSite& site, const ExchangeMap& map,
               const std::byte* result, std::size_t bytes);

  /// Rounds of the desk that it takes: 0 or 1.
  std::uint64_t rounds() const { return desk_round_ ? 1 : 0; }
  /// Does what can be done without blocking; true when push() may follow.
  bool poll();
  bool is_ready() const { return ready_; }
  /// If I push: those of the pieces that go to other ranks, from my input into their results.
  void push(const Stream& pieces) const;

 private:
  bool all_as_expected(const ExchangeMap& map) const;
  bool i_push() const;
  void find_result(int local_rank, Location where);

  const BoundUnit& unit_;
  ExchangeSite& site_;
  Location mine_ = kNowhere;
  std::vector<std::size_t> lengths_;  ///< of the results, by local rank; where I push
  std::optional<std::uint64_t> desk_round_;
  bool told_ = false;
  bool ready_ = false;
  std::vector<std::byte*> results_;  ///< by local rank, where I push; null: mine, and empty ones
};

}  // namespace hora
