/// The parts of a Simulation: nodes, ranks.
#include "tests/core/negotiation/simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/engine/operations.h"
#include "core/engine/set_engine.h"
#include "tests/support/tree_network.h"

namespace hora::internal::test {

inline ControlBlockShape control_block_shape(int local_size, int id_capacity, bool single_node) {
  // Small, so that mailboxes and the log fill up now and then.
  return {.local_size = local_size,
          .id_capacity = id_capacity,
          .single_node = single_node,
          .mailbox_bytes = 1024,
          .control_bytes = 32768};
}

struct Simulation::Node {
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  Node(const Topology& topology, int index, int id_capacity, TreeNetwork& network)
      : shape(control_block_shape(
            static_cast<int>(topology.ranks_of_node[static_cast<std::size_t>(index)].size()),
            id_capacity, topology.nodes() == 1)),
        memory(NodeControlBlock::bytes(shape) / sizeof(Line) + 1),
        control_block(memory.data()->bytes, shape, 0),
        link(network, index),
        io(topology, index, id_capacity, control_block, topology.nodes() > 1 ? &link : nullptr) {}

  ControlBlockShape shape;
  std::vector<Line> memory;
  NodeControlBlock control_block;  ///< the leader's view; read by local rank 0 too
  NetworkTreeLink link;
  LeaderIo io;
  /// Where each local rank's current tensor of a name lies.
  std::map<std::string, std::map<int, Location>> places;
};

/// Does what an engine does, but for moving data.
struct Simulation::Rank {
  Rank(Simulation& simulation, Node& home, int world_rank, int local, int id_capacity)
      : all(simulation),
        node(home),
        rank(world_rank),
        local_rank(local),
        own_view(home.memory.data()->bytes, home.shape, local),
        control_block(local == 0 ? home.control_block : own_view),
        table(id_capacity) {}

  std::size_t rounds_of(const std::string& name) const {
    const std::size_t rounds = all.script_.names.at(name).size();
    return rank == all.script_.skipping_rank && name == all.script_.skipped ? rounds - 1 : rounds;
  }
  bool can_submit(const std::string& name) const {
    const auto count = [&](const auto& map) {
      const auto entry = map.find(name);
      return entry == map.end() ? std::size_t{0} : entry->second;
    };
    return !in_flight.contains(name) && count(submitted) < rounds_of(name);
  }

  /// The next name of this rank's program, if it may submit one now.
  std::optional<std::string> next_name() const {
    if (closed) return std::nullopt;
    const Script& script = all.script_;
    if (!script.order.empty()) {
      if (in_flight.size() >=
          static_cast<std::size_t>(script.window[static_cast<std::size_t>(rank)])) {
        return std::nullopt;
      }
      for (std::size_t at = position; at < script.order.size(); ++at) {
        const std::string& name = script.order[at];
        if (can_submit(name)) return name;
        // Its turn, but still in flight; a skipped one is passed over.
        if (in_flight.contains(name)) return std::nullopt;
      }
      return std::nullopt;
    }
    std::vector<std::string> open;
    for (const auto& [name, rounds] : script.names) {
      if (can_submit(name)) open.push_back(name);
    }
    if (open.empty()) return std::nullopt;
    return open[all.random_() % open.size()];
  }

  void submit_one() {
    flush_outbox();
    const auto name = next_name();
    if (!name) return depart_if_done();
    if (!all.script_.order.empty()) {
      while (all.script_.order[position] != *name) ++position;
      ++position;
    }
    const Round& round = all.script_.names.at(*name)[submitted[*name]++];
    auto submission = std::make_shared<Operation>();
    submission->name = *name;
    submission->signature = round.odd_rank == rank ? round.odd : round.signature;
    submission->memory.set_location(
        {.window = static_cast<std::uint32_t>(rank), .reserved = 0, .offset = next_offset += 64});
    node.places[*name][local_rank] = submission->memory.location();
    in_flight.insert(*name);
    if (!table.enter(submission)) problem("the name \"" + *name + "\" is still in its table");
    announce(submission);
  }

  void announce(const std::shared_ptr<Operation>& submission) {
    const NameEntry& entry = *submission->entry;
    if (!entry.id || entry.signature != submission->signature) return report(*submission);
    const Id id = *entry.id;
    submission->id = id;
    table.set_waiting(id, submission);
    submission->repeats = all.nodes_.size() == 1 || all.random_() % 3 > 0;
    if (control_block.arrive(id, submission->memory.location(), {}, !submission->repeats) !=
        NodeControlBlock::Arrival::stale) {
      return;
    }
    table.set_waiting(id, nullptr);
    submission->id.reset();
    report(*submission);
  }

  void report(const Operation& submission) {
    outbox.push_back(encode(Mail{.kind = MailKind::report,
                                 .name = submission.name,
                                 .signature = submission.signature,
                                 .location = submission.memory.location()}));
    flush_outbox();
  }

  void flush_outbox() {
    while (!outbox.empty() && control_block.push_mail(outbox.front())) outbox.pop_front();
  }

  void depart_if_done() {
    if (departed || !in_flight.empty()) return;
    departed = true;
    outbox.push_back(
        encode(Mail{.kind = MailKind::departed, .name = {}, .signature = {}, .location = {}}));
    flush_outbox();
  }

  void read_one() {
    flush_outbox();
    complete();
    const auto batch = control_block.next_batch();
    if (!batch) return;
    Decision decision;
    decision.run = batch->ids;
    if (batch->kind == LogBatch::Kind::control) {
      decision = std::get<Decision>(decode(batch->payload).value());
    }
    execute(decision);
  }

  void execute(const Decision& decision) {
    for (const Id id : decision.retired) {
      if (const auto submission = table.retire(id)) report(*submission);
    }
    for (const Failed& failed : decision.failed) {
      history.push_back("fail " + failed.name + ": " + failed.text);
      const auto submission = table.take_undecided(failed.name);
      if (submission)
        end(*submission, failed.text);
      else if (!closed)
        problem("failure of \"" + failed.name + "\", which it has not submitted");
    }
    for (const Assigned& assigned : decision.assigned) {
      history.push_back("run " + assigned.name);
      take(table.assign(assigned.name, assigned.id), assigned.name, assigned.locations);
    }
    for (const Id id : decision.run) {
      const auto submission = table.waiting_for(id);
      const bool resized = std::ranges::find(decision.resized, id) != decision.resized.end();
      history.push_back("run " + (submission ? submission->name : "id " + std::to_string(id)) +
                        (resized ? ", resized" : ""));
      if (submission && !submission->repeats && !resized) {
        problem("told that " + submission->name + " repeats, which it does not");
      }
      std::vector<Location> locations;
      for (int r = 0; r < control_block.local_size(); ++r)
        locations.push_back(control_block.location(id, r));
      take(submission, "id " + std::to_string(id), locations);
      table.set_waiting(id, nullptr);
    }
    control_block.set_done(++executed);
    if (!decision.departed.empty()) {
      history.push_back("departed " + ranks_text(decision.departed));
      closed = true;
      for (const auto& submission : table.unfinished()) {
        if (!submission->decided) end(*submission, "shut down");
      }
    }
    all_departed |= decision.finished;
  }

  void take(const std::shared_ptr<Operation>& submission, const std::string& what,
            const std::vector<Location>& locations) {
    if (!submission) return problem("told to run " + what + ", which it has not submitted");
    submission->decided = true;
    const auto& places = node.places[submission->name];
    for (int r = 0; r < control_block.local_size(); ++r) {
      const auto place = places.find(r);
      if (place == places.end() || place->second != locations[static_cast<std::size_t>(r)]) {
        problem("wrong location of \"" + submission->name + "\" on local rank " +
                std::to_string(r));
      }
    }
    running.emplace_back(executed + 1, submission);
  }

  /// As in the data path: a tensor is free once the whole node has come as far.
  void complete() {
    while (!running.empty() && running.front().first <= control_block.done_by_all()) {
      end(*running.front().second, {});
      running.pop_front();
    }
  }

  void end(Operation& submission, const std::string& error) {
    submission.state.store(error.empty() ? Operation::kDone : Operation::kFailed);
    results[submission.name].push_back(error);
    in_flight.erase(submission.name);
    table.leave(submission);
  }

  void problem(const std::string& text) {
    all.problems_.push_back("rank " + std::to_string(rank) + ": " + text);
  }

  Simulation& all;
  Node& node;
  int rank;
  int local_rank;
  NodeControlBlock own_view;
  NodeControlBlock& control_block;
  NameTable table;
  std::map<std::string, std::size_t> submitted;
  std::set<std::string> in_flight;
  std::size_t position = 0;  ///< in the script's order
  std::uint64_t next_offset = 0;
  std::uint64_t executed = 0;
  std::deque<std::pair<std::uint64_t, std::shared_ptr<Operation>>> running;
  std::deque<std::vector<std::byte>> outbox;
  bool closed = false;
  bool departed = false;
  bool all_departed = false;
  std::vector<std::string> history;
  std::map<std::string, std::vector<std::string>> results;
};

Simulation::Simulation(const Topology& topology, int id_capacity, const Script& script,
                       std::mt19937_64& random)
    : script_(script),
      random_(random),
      network_(topology.nodes(), &random),
      ranks_(static_cast<std::size_t>(topology.size())) {
  for (int n = 0; n < topology.nodes(); ++n) {
    nodes_.push_back(std::make_unique<Node>(topology, n, id_capacity, network_));
    const auto& ranks = topology.ranks_of_node[static_cast<std::size_t>(n)];
    for (std::size_t local = 0; local < ranks.size(); ++local) {
      ranks_[static_cast<std::size_t>(ranks[local])] = std::make_unique<Rank>(
          *this, *nodes_.back(), ranks[local], static_cast<int>(local), id_capacity);
    }
  }
}

Simulation::~Simulation() = default;

const std::vector<std::string>& Simulation::history(int rank) const {
  return ranks_[static_cast<std::size_t>(rank)]->history;
}

const std::vector<std::string>& Simulation::results(int rank, const std::string& name) const {
  return ranks_[static_cast<std::size_t>(rank)]->results[name];
}

bool Simulation::finished() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->all_departed; });
}

std::string Simulation::unfinished_names() const {
  std::string text;
  for (const auto& rank : ranks_) {
    for (const std::string& name : rank->in_flight) {
      text += " rank " + std::to_string(rank->rank) + " waits for " + name + ";";
    }
  }
  return text;
}

void Simulation::run() {
  // Speeds over two orders of magnitude.
  std::vector<double> speeds;
  std::uniform_real_distribution<double> exponent(0.0, 2.0);
  for (std::size_t i = 0; i < 2 * ranks_.size() + nodes_.size(); ++i) {
    speeds.push_back(std::pow(10.0, exponent(random_)));
  }
  std::discrete_distribution<std::size_t> choose(speeds.begin(), speeds.end());
  constexpr int kMostSteps = 400000;
  for (int step = 0; !finished(); ++step) {
    if (step == kMostSteps) {
      problems_.push_back("no end after " + std::to_string(step) + " steps:" + unfinished_names());
      return;
    }
    if (problems_.size() > 5) return;
    const std::size_t actor = choose(random_);
    if (actor < ranks_.size()) {
      ranks_[actor]->submit_one();
    } else if (actor < 2 * ranks_.size()) {
      ranks_[actor - ranks_.size()]->read_one();
    } else {
      nodes_[actor - 2 * ranks_.size()]->io.work(Duration(step));
    }
  }
}

}  // namespace hora::internal::test
