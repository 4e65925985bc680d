#include "core/engine/leader_desk.h"

#include <hora/error.h>

#include <variant>

#include "core/board/futex.h"
#include "core/log.h"

namespace hora {
namespace {

Message decode_or_throw(std::span<const std::byte> bytes, const std::string& from) {
  auto message = decode(bytes);
  if (!message) {
    throw Error(ErrorCode::transport, "negotiation: message from " + from + ": " + message.error() +
                                          ". Do all ranks run the same build of hora?");
  }
  return std::move(*message);
}

}  // namespace

LeaderDesk::LeaderDesk(const Topology& topology, int node, int id_capacity, NodeBoard& board,
                       TreeLink* tree, ProcessSet set)
    : parent_(tree_parent(node)),
      children_(tree_children(node, topology.nodes())),
      board_(board),
      tree_(tree),
      leader_(topology, node, id_capacity,
              {.retire = [&board](Id id, bool idle) { return board.retire(id, idle); },
               .last_run = [&board](Id id) { return board.last_run(id); },
               .ready_mask = [&board](Id id) { return board.ready_mask(id); }},
              set) {}

bool LeaderDesk::work(Now now) {
  bool any = read_mail(now);
  if (tree_) {
    any |= read_arrivals();
    any |= read_tree(now);
  }
  if (!watched_.empty()) leader_.on_watched_arrivals();
  any |= hand_out(now);
  any |= flush_log();
  return any;
}

bool LeaderDesk::unfinished() {
  return !for_log_.empty() || (tree_ && !tree_->flushed());
}

bool LeaderDesk::read_mail(Now now) {
  bool any = false;
  for (int r = 0; r < board_.local_size(); ++r) {
    while (const auto bytes = board_.pop_mail(r)) {
      any = true;
      const Message message = decode_or_throw(*bytes, "local rank " + std::to_string(r));
      const Mail* mail = std::get_if<Mail>(&message);
      if (!mail) {
        throw Error(ErrorCode::transport, "negotiation: local rank " + std::to_string(r) +
                                              " sent a leader's message to its own leader");
      }
      leader_.on_mail(r, *mail, now);
    }
  }
  return any;
}

bool LeaderDesk::read_arrivals() {
  bool any = false;
  while (const auto id = board_.pop_arrival()) {
    any = true;
    leader_.on_node_ready(*id);
  }
  return any;
}

bool LeaderDesk::read_tree(Now now) {
  bool any = false;
  while (const auto received = tree_->receive()) {
    any = true;
    const Message message =
        decode_or_throw(received->bytes, "node " + std::to_string(received->node));
    if (const Up* up = std::get_if<Up>(&message)) {
      leader_.on_up(received->node, *up, now);
    } else if (const Decision* decision = std::get_if<Decision>(&message)) {
      leader_.on_decision(*decision);
    }
  }
  return any;
}

bool LeaderDesk::hand_out(Now now) {
  bool any = false;
  // Watching can show arrivals that came before it: look once more after each round.
  for (;;) {
    LeaderOutput output = leader_.take(now);
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
    any |= !output.up.empty() || !output.decisions.empty();
    if (output.watch.empty()) return any;
    for (const Id id : output.watch) {
      board_.watch(id, true);
      watched_.push_back(id);
    }
    leader_.on_watched_arrivals();
  }
}

void LeaderDesk::prepare_board(const Decision& decision) {
  const auto unwatch = [&](Id id) {
    if (std::erase(watched_, id) > 0) board_.watch(id, false);
  };
  for (const Id id : decision.retired) {
    unwatch(id);
    // Its last arriver on this node may just be appending it: that takes two instructions.
    while (!board_.retire(id, false)) spin_pause();
  }
  for (const Failed& failed : decision.failed) {
    if (!failed.has_id) continue;
    unwatch(failed.id);
    board_.reset(failed.id);
  }
}

void LeaderDesk::to_log(const Decision& decision) {
  prepare_board(decision);
  for_log_.push_back(decision);
  flush_log();
}

bool LeaderDesk::flush_log() {
  bool any = false;
  while (!for_log_.empty()) {
    const Decision& decision = for_log_.front();
    if (decision.only_runs()) {
      board_.push_run(decision.run);
    } else if (!board_.push_control(encode(decision))) {
      break;
    }
    any = true;
    for_log_.pop_front();
  }
  if (any) board_.signal_others();
  return any;
}

}  // namespace hora
