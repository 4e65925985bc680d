/// What ranks tell one another before an exchange on devices begins: in one node by its shared
/// memory, over nodes by messages among the leaders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/exchange.h"
#include "core/plan/plan.h"
#include "ops/hierarchy/exchange_memory.h"
#include "ops/hierarchy/exchange_sizes.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// Of a set of one node: its ranks' headers say all.
class AgreementInNode final : public ExchangeAgreement {
 public:
  /// The unit outlives it.
  AgreementInNode(const BoundUnit& unit, int local_rank);
  const ExchangeExtents* extents() override { return &extents_; }
  void tell(bool has_memory) override;
  std::optional<int> lacking() override;
  std::uint64_t rounds() const override { return 0; }

 private:
  const BoundUnit& unit_;
  int local_rank_;
  ExchangeExtents extents_;
};

/// A round (ExchangeRounds) in which each node's leader sends some bytes to all the others, and
/// every rank reads what has come. Thread rule: the thread that holds the engine's lock.
class LeadersRound {
 public:
  /// `lengths`: of what each node brings, by node. The context outlives it.
  LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
               std::vector<std::size_t> lengths);

  bool leads() const { return context_.local_rank == 0; }
  /// The leader's, once: what this node brings.
  void bring(std::span<const std::byte> bytes);
  /// Polled: what all nodes have brought, that of node n at n * stride(); null: not there yet.
  const std::byte* poll();
  std::size_t stride() const { return stride_; }
  /// It has been read, on this rank.
  void leave() { context_.rounds.copied(round_); }

 private:
  bool publish();
  std::size_t bytes() const { return lengths_.size() * stride_; }

  ExchangeContext& context_;
  std::uint64_t round_;
  std::uint64_t sequence_;
  std::vector<std::size_t> lengths_;
  std::size_t stride_;
  std::vector<std::byte> own_;  ///< of a leader, until its message has left
  bool brought_ = false;
  bool crossing_ = false;
  bool published_ = false;
  Completion crossed_;
};

/// Of a set of several nodes, by the memory's cross group: one round of extents, where they may
/// differ, and one of who lacks memory. It always makes progress, as ExchangeRun does.
class AgreementOverNodes final : public ExchangeAgreement {
 public:
  std::uint64_t rounds() const override { return sizes_.must_be_exchanged() ? 2 : 1; }

  /// `first_sequence`: of the cross group's operations, one a round. Unit and context outlive it.
  AgreementOverNodes(const BoundUnit& unit, ExchangeContext& context, std::uint64_t first_sequence);
  /// Throws Error(transport) for what cannot be.
  const ExchangeExtents* extents() override;
  void tell(bool has_memory) override;
  std::optional<int> lacking() override;

 private:
  int lacking_of_node() const;
  int first_of(const std::byte* verdicts) const;

  const BoundUnit& unit_;
  ExchangeContext& context_;
  ExchangeSizes sizes_;
  std::optional<LeadersRound> extents_round_;
  LeadersRound memory_round_;
  std::optional<ExchangeExtents> extents_;
  bool asked_ = false;
};

}  // namespace hora::internal
