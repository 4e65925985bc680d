#include <algorithm>
#include <set>

#include "core/engine/deadlines.h"
#include "core/engine/waits.h"

namespace hora::internal {
namespace {

/// The lowest of a node's ranks that wait logs for all of them; if it stops meanwhile, another one
/// does after this time.
constexpr Duration kTurn = std::chrono::seconds(1);
/// A process that ends is noticed this late, where nothing else shows it.
constexpr Duration kProcessCheck = std::chrono::seconds(1);

/// Adds what other nodes have reported, and what of this node no look of its own has added.
void add_heard(TimedOut& facts, const Presence& presence) {
  for (const std::string& remark : presence.remarks) {
    if (!remark.empty()) facts.remarks.push_back(remark);
  }
}

}  // namespace

StallWatch::StallWatch(const SetParts& parts, const EngineParts& engine, ProcessSet id)
    : parts_(parts), engine_(engine), id_(id), warning_(engine.settings.stall_warning) {}

const std::vector<int>& StallWatch::ranks_of_node() const {
  const int node = parts_.topology.node_of(engine_.rank);
  return parts_.topology.ranks_of_node[static_cast<std::size_t>(node)];
}

ProcessIdentity StallWatch::identity_of(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return r < engine_.processes.size() ? engine_.processes[r] : ProcessIdentity{.rank = rank};
}

std::string StallWatch::state_of(int local_rank) const {
  const int rank = ranks_of_node()[static_cast<std::size_t>(local_rank)];
  RankFacts facts{.process = identity_of(rank)};
  facts.state = process_state(facts.process.pid);
  const NodeControlBlock& of_world = *engine_.world.control_block;
  const RankStatus& status = of_world.status(engine_.world.topology.local_rank_of(rank));
  facts.submitted = status.submitted.read();
  facts.waits_for = status.waits_for.read();
  return rank_state_text(facts, now());
}

TimedOut StallWatch::facts_of(const Submission& submission, std::uint64_t unit,
                              const LeaderIo* leader_io) const {
  const Duration time = now();
  TimedOut facts = known_of(submission.name, submission.limit, engine_.rank);
  facts.decided = submission.decided;
  if (facts.decided) {
    for (const int r : parts_.control_block->behind(unit)) {
      facts.unfinished.push_back(ranks_of_node()[static_cast<std::size_t>(r)]);
    }
    add_remarks(facts, facts.unfinished);
    return facts;
  }
  const Presence presence = presence_of(submission, leader_io);
  note_absent(facts, presence);
  facts.root_is_silent = facts.rank != facts.root && root_is_silent(submission, time);
  if (facts.root_is_silent) {
    const Duration heard = parts_.control_block->stall_board().heard();
    if (heard.count() > 0) facts.unheard = time - heard;
  }
  std::vector<int> absent = facts.missing;
  absent.insert(absent.end(), facts.unknown.begin(), facts.unknown.end());
  // Its leader may be what keeps the root's answer away, whether it has submitted the name or not.
  if (facts.root_is_silent) absent.push_back(ranks_of_node().front());
  add_remarks(facts, absent);
  add_heard(facts, presence);
  return facts;
}

TimedOut StallWatch::facts_of(const Expired& expired) const {
  const Expiry& expiry = expired.expiring.expiry;
  TimedOut facts =
      known_of(expired.expiring.name, {expiry.limit, expiry.is_of_call}, expired.expiring.rank);
  note_absent(facts, expired.presence);
  add_heard(facts, expired.presence);
  return facts;
}

/// What holds whatever has become of it; `rank`: who has submitted it.
TimedOut StallWatch::known_of(const std::string& name, const TimeLimit& limit, int rank) const {
  const Topology& topology = parts_.topology;
  return {.name = name,
          .set = id_,
          .limit = limit,
          .rank = rank,
          .root = topology.ranks_of_node.front().front(),
          .reporter = engine_.rank,
          .has_other_nodes = topology.nodes() > 1};
}

/// Adds a remark on each of `ranks` that is on this node.
void StallWatch::add_remarks(TimedOut& facts, const std::vector<int>& ranks) const {
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    const int rank = ranks_of_node()[r];
    if (rank == facts.rank || std::ranges::find(ranks, rank) == ranks.end()) continue;
    facts.remarks.push_back(state_of(static_cast<int>(r)));
  }
}

void StallWatch::note_absent(TimedOut& facts, const Presence& presence) const {
  const std::set<int> ready(presence.ready.begin(), presence.ready.end());
  const std::set<int> missing(presence.missing.begin(), presence.missing.end());
  for (const auto& ranks : parts_.topology.ranks_of_node) {
    for (const int rank : ranks) {
      if (rank == facts.rank || ready.contains(rank)) continue;
      (missing.contains(rank) ? facts.missing : facts.unknown).push_back(rank);
    }
  }
  std::sort(facts.missing.begin(), facts.missing.end());
  std::sort(facts.unknown.begin(), facts.unknown.end());
}

/// As far as this rank knows: of others than leaders the ready bits of their nodes.
Presence StallWatch::presence_of(const Submission& submission, const LeaderIo* leader_io) const {
  if (leader_io) return leader_io->presence_of(submission.name);
  Presence presence{submission.name, {}, {}};
  if (!submission.id) return presence;
  const NodeControlBlock& control_block = *parts_.control_block;
  const LocalRanks ready = control_block.ready_ranks(*submission.id);
  // Cleared when all have become ready.
  const bool all = !ready[static_cast<std::size_t>(control_block.local_rank())];
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    (all || ready[r] ? presence.ready : presence.missing).push_back(ranks_of_node()[r]);
  }
  return presence;
}

std::optional<std::string> StallWatch::look(Duration time, const std::optional<Stall>& stall) {
  next_look_ = time + std::min<Duration>(kOverdueTick, warning_ / 4);
  StallBoard& board = parts_.control_block->stall_board();
  const int local_rank = parts_.control_block->local_rank();
  board.set_waiting(local_rank, stall.has_value());
  if (!stall) {
    waits_since_ = {};
    return std::nullopt;
  }
  // Other ranks that wait, too, set their flags until the next look.
  if (waits_since_ == Duration{}) {
    waits_since_ = time;
    return std::nullopt;
  }
  const Duration head_start = board.is_lowest(local_rank) ? Duration{} : kTurn;
  if (time - waits_since_ < head_start) return std::nullopt;
  const Duration interval = std::max<Duration>(warning_, stall->age);
  if (!board.claim(time, interval, head_start)) return std::nullopt;
  return stall->text();
}

std::optional<StallWatch::Stall> StallWatch::join_stall(Duration age) const {
  if (age < warning_) return std::nullopt;
  const LocalRanks joined = parts_.control_block->joined_ranks();
  std::vector<int> missing;
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    if (!joined[r]) missing.push_back(static_cast<int>(r));
  }
  if (missing.empty()) return std::nullopt;
  return Stall{age, [=, this] {
                 std::vector<std::string> remarks;
                 for (const int r : missing) remarks.push_back(state_of(r));
                 return waiting_text({.process = identity_of(engine_.rank),
                                      .call = "join()",
                                      .waited = age,
                                      .remarks = remarks});
               }};
}

std::optional<Error> StallWatch::gone_rank(Duration time, bool any_waits) {
  next_check_ = time + kProcessCheck;
  if (!any_waits) return std::nullopt;
  for (std::size_t r = 0; r < ranks_of_node().size(); ++r) {
    const int rank = ranks_of_node()[r];
    if (rank == engine_.rank || process_state(identity_of(rank).pid) != ProcessState::gone) {
      continue;
    }
    return Error(ErrorCode::transport,
                 state_of(static_cast<int>(r)) +
                     ". It has not called shutdown(): was it killed (by the kernel where memory "
                     "ran out: see dmesg), or has it left by exit()?",
                 rank);
  }
  return std::nullopt;
}

}  // namespace hora::internal
