/// What ranks of one node write into one another's results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"
#include "ops/hierarchy/exchange_memory.h"

namespace hora {

/// A rank that pushes must know where the results are. Those that are as their ranks expected are
/// known from the start; if one is not, every rank publishes the place of its result in a round of
/// the rounds. All ranks of the node decide that alike, from the same headers.
/// Thread rule: the thread that holds the engine's lock.
class ExchangePush {
 public:
  /// At least one rank pushes.
  static bool is_needed(const BoundUnit& unit);

  /// Where it is needed. `result`: this rank's, allocated. Unit and context outlive it.
  ExchangePush(const BoundUnit& unit, ExchangeContext& context, const ExchangeMap& map,
               const std::byte* result, std::size_t bytes);

  /// Rounds of the rounds that it takes: 0 or 1.
  std::uint64_t rounds() const { return exchange_round_ ? 1 : 0; }
  /// Does what can be done without blocking; true when push() may follow.
  bool poll();
  bool is_ready() const { return ready_; }
  /// If this rank pushes: those of the transfers that go to others, from its input into their
  /// results.
  void push(const ByteLayout& transfers) const;

 private:
  bool all_as_expected(const ExchangeMap& map) const;
  bool i_push() const;
  void find_result(int local_rank, Location where);

  const BoundUnit& unit_;
  ExchangeContext& context_;
  Location mine_ = kNowhere;
  std::vector<std::size_t> lengths_;  ///< of the results, by local rank; where this rank pushes
  std::optional<std::uint64_t> exchange_round_;
  bool told_ = false;
  bool ready_ = false;
  std::vector<std::byte*> results_;  ///< likewise; null: this rank's own, and empty ones
};

}  // namespace hora
