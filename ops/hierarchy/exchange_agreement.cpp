#include "ops/hierarchy/exchange_agreement.h"

#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace hora::internal {
namespace {

using Verdict = std::int32_t;  ///< a rank's place in the set, or kNoRank

bool has_told(const ResultRoom& room) {
  return room.answer() != ResultRoom::Answer::none_yet;
}
bool lacks(const ResultRoom& room) {
  return room.answer() == ResultRoom::Answer::lacking;
}
void tell_in_node(const BoundUnit& unit, int local_rank, bool has_memory) {
  unit.exchange.room[static_cast<std::size_t>(local_rank)].tell(
      has_memory ? ResultRoom::Answer::enough : ResultRoom::Answer::lacking);
}

std::vector<std::size_t> lengths_of_extents(const ExchangeSizes& sizes, int nodes) {
  std::vector<std::size_t> lengths;
  for (int node = 0; node < nodes; ++node) lengths.push_back(sizes.bytes_of(node));
  return lengths;
}

}  // namespace

AgreementInNode::AgreementInNode(const BoundUnit& unit, int local_rank)
    : unit_(unit),
      local_rank_(local_rank),
      extents_{unit.unit.kind, unit.exchange.row_bytes, unit.exchange.rows} {}

void AgreementInNode::tell(bool has_memory) {
  tell_in_node(unit_, local_rank_, has_memory);
}

std::optional<int> AgreementInNode::lacking() {
  const auto& room = unit_.exchange.room;
  if (!std::ranges::all_of(room, has_told)) return std::nullopt;
  const auto first = std::ranges::find_if(room, lacks);
  return first == room.end() ? kNoRank : static_cast<int>(first - room.begin());
}

LeadersRound::LeadersRound(ExchangeContext& context, std::uint64_t round, std::uint64_t sequence,
                           std::vector<std::size_t> lengths)
    : context_(context),
      round_(round),
      sequence_(sequence),
      lengths_(std::move(lengths)),
      stride_(align_up(*std::ranges::max_element(lengths_))) {}

void LeadersRound::bring(std::span<const std::byte> bytes) {
  own_.assign(bytes.begin(), bytes.end());
  brought_ = true;
}

const std::byte* LeadersRound::poll() {
  if (leads() && !published_ && !publish()) return nullptr;
  if (!context_.rounds.published(round_, 1)) return nullptr;
  return context_.memory.at(0, context_.rounds.staging(0, round_), bytes());
}

/// The leader's: true when what all nodes bring lies in its staging.
bool LeadersRound::publish() {
  if (!brought_) return false;
  GrowingBlock& staging = context_.memory.staging(round_);
  if (!crossing_) {
    if (!context_.rounds.may_fill(round_)) return false;
    std::byte* const all = staging.reserve(bytes());
    const auto own_node = static_cast<std::size_t>(context_.node);
    if (!own_.empty()) std::memcpy(all + own_node * stride_, own_.data(), own_.size());
    const std::vector<std::span<const std::byte>> sends(lengths_.size(), own_);
    std::vector<std::span<std::byte>> receives;
    for (std::size_t node = 0; node < lengths_.size(); ++node) {
      receives.emplace_back(all + node * stride_, lengths_[node]);
    }
    crossed_ = context_.cross->exchange(sends, receives, sequence_);
    crossing_ = true;
  }
  if (!crossed_.poll()) return false;
  context_.rounds.publish(round_, staging.location());
  published_ = true;
  return true;
}

AgreementOverNodes::AgreementOverNodes(const BoundUnit& unit, ExchangeContext& context,
                                       std::uint64_t first_sequence)
    : unit_(unit),
      context_(context),
      sizes_(unit, context.topology, context.node),
      memory_round_(
          context, context.rounds_done + rounds() - 1, first_sequence + rounds() - 1,
          std::vector<std::size_t>(context.topology.ranks_of_node.size(), sizeof(Verdict))) {
  if (!sizes_.must_be_exchanged()) {
    extents_ = sizes_.extents();
    return;
  }
  extents_round_.emplace(context, context.rounds_done, first_sequence,
                         lengths_of_extents(sizes_, context.topology.nodes()));
  if (!extents_round_->leads()) return;
  std::vector<std::byte> own(sizes_.bytes_of(context.node));
  sizes_.write(own.data());
  extents_round_->bring(own);
}

const ExchangeExtents* AgreementOverNodes::extents() {
  if (!extents_) {
    const std::byte* const all = extents_round_->poll();
    if (!all) return nullptr;
    sizes_.read(all);
    extents_round_->leave();
    extents_ = sizes_.extents();
  }
  return &*extents_;
}

void AgreementOverNodes::tell(bool has_memory) {
  tell_in_node(unit_, context_.local_rank, has_memory);
}

std::optional<int> AgreementOverNodes::lacking() {
  if (memory_round_.leads() && !asked_ && std::ranges::all_of(unit_.exchange.room, has_told)) {
    const Verdict verdict = lacking_of_node();
    memory_round_.bring(std::as_bytes(std::span(&verdict, 1)));
    asked_ = true;
  }
  const std::byte* const all = memory_round_.poll();
  if (!all) return std::nullopt;
  const int first = first_of(all);
  memory_round_.leave();
  return first;
}

int AgreementOverNodes::lacking_of_node() const {
  const auto& room = unit_.exchange.room;
  const auto first = std::ranges::find_if(room, lacks);
  return first == room.end() ? kNoRank : context_.rank_of(static_cast<int>(first - room.begin()));
}

/// Of what the nodes say, in places that are numbered as the set's ranks.
int AgreementOverNodes::first_of(const std::byte* verdicts) const {
  int first = kNoRank;
  for (int node = 0; node < context_.topology.nodes(); ++node) {
    Verdict verdict = kNoRank;
    std::memcpy(&verdict, verdicts + static_cast<std::size_t>(node) * memory_round_.stride(),
                sizeof verdict);
    if (verdict == kNoRank) continue;
    if (context_.topology.node_of(verdict) != node) {
      throw Error(ErrorCode::transport,
                  "exchange: node " + std::to_string(node) + " says that rank " +
                      std::to_string(verdict) +
                      " of the set lacks memory, which is none of its ranks. Do all ranks run the "
                      "same build of hora?");
    }
    if (first == kNoRank || verdict < first) first = verdict;
  }
  return first;
}

}  // namespace hora::internal
