/// Ranks of one set with real control blocks and pipelines, whose units need no engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/negotiation/topology.h"
#include "core/plan/plan.h"
#include "tests/ops/hierarchy/exchange_model.h"

namespace hora::internal::test {

struct ExchangeOutcome {
  std::vector<std::int64_t> rows;
  Bytes bytes;
};

/// Inputs and extents are overwritten as soon as their rank is told that its unit is complete.
/// Failures of checks during the run throw std::logic_error. Thread rule: one thread.
class ExchangeWorld {
 public:
  ExchangeWorld(const Topology& topology, std::size_t chunk_bytes);
  ~ExchangeWorld();

  /// [operation][rank]: the ranks in one thread, which goes on with any of them at random.
  std::vector<std::vector<ExchangeOutcome>> run_in_steps(
      const std::vector<ExchangeOperation>& operations, std::mt19937_64& random);
  /// Likewise, a thread for each rank.
  std::vector<std::vector<ExchangeOutcome>> run_in_threads(
      const std::vector<ExchangeOperation>& operations);
  bool polls() const;

 private:
  struct Node;
  struct Rank;
  struct Bound;

  std::vector<std::vector<Bound>> bind(const std::vector<ExchangeOperation>& operations);
  std::vector<std::vector<ExchangeOutcome>> outcomes(const std::vector<std::vector<Bound>>& bound);
  BoundUnit unit_for(const std::vector<Bound>& of_rank, const ExchangeOperation& operation,
                     int rank) const;
  void retire(std::vector<std::vector<Bound>>& bound, int rank);

  Topology topology_;
  std::size_t chunk_bytes_;
  std::uint64_t units_before_ = 0;
  struct Wires;
  std::unique_ptr<Wires> wires_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< by rank
};

}  // namespace hora::internal::test
