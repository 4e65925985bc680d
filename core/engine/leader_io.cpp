#include "core/engine/leader_io.h"

#include <hora/error.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <thread>
#include <variant>

#include "core/base/log.h"
#include "core/base/sync.h"

namespace hora::internal {
namespace {

[[noreturn]] void refuse(const std::string& from, const std::string& problem) {
  throw Error(
      ErrorCode::transport,
      fmt::format("negotiation: message from {}: {}. Do all ranks run the same build of hora?",
                  from, problem));
}

/// For a message of one cause to leave; peers that are gone take none.
constexpr auto kSendTime = std::chrono::milliseconds(10);

/// The message, of a kind that `from` sends.
template <class Expected>
Expected read_as(std::span<const std::byte> bytes, const MessageLimits& limits,
                 const std::string& from) {
  auto message = decode(bytes, limits);
  if (!message) refuse(from, message.error());
  if (const auto* const end = std::get_if<JobEnd>(&*message)) {
    throw EndedElsewhere(end->code, end->text, end->rank, end->tensor);
  }
  Expected* const expected = std::get_if<Expected>(&*message);
  if (!expected) refuse(from, "of a kind that is never sent from there");
  return std::move(*expected);
}

}  // namespace

LeaderIo::LeaderIo(const Topology& topology, int node, int id_capacity,
                   NodeControlBlock& control_block, TreeLink* tree, ProcessSet set,
                   Duration warning_interval, std::function<std::string(int)> remark)
    : parent_(tree_parent(node)),
      children_(tree_children(node, topology.nodes())),
      limits_(message_limits(topology, id_capacity, 0)),
      control_block_(control_block),
      tree_(tree),
      leader_(
          topology, node, id_capacity,
          {.retire = [&control_block](Id id, bool idle) { return control_block.retire(id, idle); },
           .last_run = [&control_block](Id id) { return control_block.last_run(id); },
           .ready_ranks = [&control_block](Id id) { return control_block.ready_ranks(id); },
           .remark = std::move(remark)},
          set, warning_interval),
      local_ranks_(topology.ranks_of_node[static_cast<std::size_t>(node)]) {}

bool LeaderIo::work(Duration now) {
  bool any = read_mail(now);
  if (tree_) {
    any |= read_arrivals();
    any |= read_tree(now);
  }
  if (!watched_.empty()) look_at_watched();
  // A leader that waits looks often, and mostly has nothing to say.
  if (any || has_output(now)) {
    has_more_ = hand_out(now);
    any |= has_more_;
  }
  any |= flush_log();
  return any;
}

bool LeaderIo::has_output(Duration now) const {
  if (has_more_ || !watched_.empty() || !leader_.is_idle()) return true;
  const auto due = leader_.deadline();
  return due && *due <= now;
}

bool LeaderIo::unfinished() {
  return !for_log_.empty() || (tree_ && !tree_->flushed());
}

bool LeaderIo::has_pending_work() const {
  return control_block_.leader_has_pending_work() ||
         std::ranges::any_of(watched_, [&](const WatchedId& watched) {
           return control_block_.ready_ranks(watched.id) != watched.seen;
         });
}

void LeaderIo::send_end(const Error& error) noexcept {
  if (!tree_) return;
  try {
    const auto bytes = encode(JobEnd{error.code(), error.rank(), error.what(), error.tensor()});
    if (parent_ >= 0) tree_->send(parent_, bytes);
    for (const int child : children_) tree_->send(child, bytes);
    const auto end = std::chrono::steady_clock::now() + kSendTime;
    while (!tree_->flushed() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  } catch (const std::exception&) {
    // The transport has failed, or memory: neighbours find a cause of their own.
  }
}

bool LeaderIo::read_mail(Duration now) {
  bool any = false;
  for (int r = 0; r < control_block_.local_size(); ++r) {
    while (const auto bytes = control_block_.pop_mail(r)) {
      any = true;
      leader_.on_mail(r, read_as<Mail>(*bytes, limits_, fmt::format("local rank {}", r)), now);
    }
  }
  return any;
}

bool LeaderIo::read_arrivals() {
  bool any = false;
  while (const auto id = control_block_.pop_arrival()) {
    any = true;
    const NodeControlBlock::Last last = control_block_.last_arrival(*id);
    const int rank =
        last.local_rank < 0 ? -1 : local_ranks_[static_cast<std::size_t>(last.local_rank)];
    leader_.on_node_ready(*id, {rank, last.at, last.late}, control_block_.take_resized(*id));
  }
  return any;
}

bool LeaderIo::read_tree(Duration now) {
  bool any = false;
  while (const auto received = tree_->receive()) {
    any = true;
    read(*received, now);
  }
  return any;
}

void LeaderIo::read(const TreeLink::Received& received, Duration now) {
  const std::string from = fmt::format("node {}", received.node);
  if (received.node == parent_) {
    control_block_.stall_board().note_heard(now);
    const auto decision = read_as<Decision>(received.bytes, limits_, from);
    const std::string problem = leader_.problem_in(decision);
    if (!problem.empty()) refuse(from, problem);
    leader_.on_decision(decision);
  } else if (std::find(children_.begin(), children_.end(), received.node) != children_.end()) {
    leader_.on_up(received.node, read_as<Up>(received.bytes, limits_, from), now);
  } else {
    refuse(from, "it is neither above nor below this node");
  }
}

void LeaderIo::look_at_watched() {
  // Before the leader looks: whoever arrives meanwhile is pending work.
  for (WatchedId& watched : watched_) watched.seen = control_block_.ready_ranks(watched.id);
  leader_.on_watched_arrivals();
}

bool LeaderIo::hand_out(Duration now) {
  bool any = false;
  // Arrivals may have come before watching began: check once more after each round.
  for (;;) {
    LeaderOutput output = leader_.take(now);
    // First: a decision of the same output may end it.
    for (const Id id : output.watch) {
      control_block_.watch(id, true);
      watched_.push_back({id, 0});
    }
    if (!output.up.empty()) tree_->send(parent_, encode(output.up));
    for (const Decision& decision : output.decisions) {
      if (!children_.empty()) {
        Decision plain = decision;
        for (Assigned& assigned : plain.assigned) assigned.locations.clear();
        const auto bytes = encode(plain);
        for (const int child : children_) tree_->send(child, bytes);
      }
      to_log(decision);
    }
    for (const std::string& warning : output.warnings) log().warn("{}", warning);
    arrivals_.insert(arrivals_.end(), output.arrivals.begin(), output.arrivals.end());
    std::ranges::move(output.expired, std::back_inserter(expired_));
    any |= !output.up.empty() || !output.decisions.empty();
    if (output.watch.empty()) return any;
    look_at_watched();
  }
}

void LeaderIo::prepare_control_block(const Decision& decision) {
  const auto unwatch = [&](Id id) {
    const auto is_it = [id](const WatchedId& watched) { return watched.id == id; };
    if (std::erase_if(watched_, is_it) > 0) control_block_.watch(id, false);
  };
  for (const Id id : decision.retired) {
    unwatch(id);
    // Its last arriver on this node may be about to append it: that takes two instructions.
    while (!control_block_.retire(id, false)) spin_pause();
  }
  for (const Failed& failed : decision.failed) {
    if (!failed.has_id) continue;
    unwatch(failed.id);
    control_block_.reset(failed.id);
  }
}

void LeaderIo::to_log(const Decision& decision) {
  prepare_control_block(decision);
  for_log_.push_back(decision);
  flush_log();
}

bool LeaderIo::flush_log() {
  bool any = false;
  while (!for_log_.empty()) {
    const Decision& decision = for_log_.front();
    if (decision.only_runs()) {
      control_block_.push_run(decision.run);
    } else if (!control_block_.push_control(encode(decision))) {
      break;
    }
    any = true;
    for_log_.pop_front();
  }
  if (any) control_block_.signal_others();
  return any;
}

}  // namespace hora::internal
