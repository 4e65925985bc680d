// Thousands of random schedules of whole negotiations: whatever the order of submissions, messages
// and steps, all ranks read the same decisions, each name gets its result, and nothing is decided
// before every rank has submitted it.
#include "core/negotiation/leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/engine/operations.h"
#include "core/engine/set_engine.h"
#include "tests/support/seed.h"
#include "tests/support/tree_network.h"

namespace hora::internal {
namespace {

/// One use of a name: what every rank submits, but for one that may differ.
struct Round {
  Signature signature;
  int odd_rank = -1;  ///< -1: all ranks agree
  Signature odd = {};
};

struct Script {
  std::map<std::string, std::vector<Round>> names;
  /// All ranks submit in one order, rank r with at most window[r] names in flight, as programs do
  /// that wait for results. Empty: each rank in a random order, as many at once as there are names.
  std::vector<std::string> order = {};
  std::vector<int> window = {};
  /// This rank never submits the last round of this name.
  int skipping_rank = -1;
  std::string skipped = {};
};

/// Messages between leaders stay in order between each pair and are otherwise delivered in random
/// order; every rank, leader and link has a random speed of its own.
class Simulation {
 public:
  Simulation(const Topology& topology, int id_capacity, const Script& script,
             std::mt19937_64& random);
  ~Simulation();

  /// Until every rank has its results, has departed and knows that all have; gives up when that
  /// takes too many steps. Throws what leaders throw.
  void run();

  /// Everything that went wrong: a decision on a tensor that a rank has not submitted, a wrong
  /// location, no end.
  const std::vector<std::string>& problems() const { return problems_; }

  /// Everything that rank read from its log, in order: "run NAME", "run NAME, resized", "fail NAME:
  /// TEXT", "departed RANKS".
  const std::vector<std::string>& history(int rank) const;
  /// Results of one name on one rank: empty for a run, else the error's text.
  const std::vector<std::string>& results(int rank, const std::string& name) const;

 private:
  struct Node;
  struct Rank;

  bool finished() const;
  std::string unfinished_names() const;

  Script script_;
  std::mt19937_64& random_;
  std::vector<std::string> problems_;
  test::TreeNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

ControlBlockShape control_block_shape(int local_size, int id_capacity, bool single_node) {
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

  Node(const Topology& topology, int index, int id_capacity, test::TreeNetwork& network)
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
  test::NetworkTreeLink link;
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
      const auto submission = table.take_waiting(id);
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

using Random = std::mt19937_64;

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
}

Signature shaped(std::int64_t extent) {
  Signature signature;
  signature.shape = {extent};
  return signature;
}

Topology random_topology(Random& random) {
  const int nodes = 1 + below(random, 9);
  std::vector<int> group_of_rank;
  for (int node = 0; node < nodes; ++node) {
    for (int r = 0; r <= below(random, 3); ++r) group_of_rank.push_back(node);
  }
  if (random() % 2 == 0) std::shuffle(group_of_rank.begin(), group_of_rank.end(), random);
  return make_topology(group_of_rank, 0);
}

struct Chances {
  double changes = 0;    ///< that a name has another signature than in the round before
  double disagrees = 0;  ///< that one rank has another signature than the rest
};

Script random_script(Random& random, int ranks, int names, int rounds, const Chances& chances) {
  std::bernoulli_distribution changes(chances.changes);
  std::bernoulli_distribution disagrees(chances.disagrees);
  Script script;
  for (int n = 0; n < names; ++n) {
    std::int64_t extent = 1;
    auto& of_name = script.names["t" + std::to_string(n)];
    for (int k = 0; k < rounds; ++k) {
      if (changes(random)) ++extent;
      Round round{.signature = shaped(extent)};
      if (ranks > 1 && disagrees(random)) {
        round.odd_rank = below(random, ranks);
        // At times what the name was, or will be, elsewhere.
        round.odd = shaped(std::max<std::int64_t>(1, extent + below(random, 3) - 1));
        if (round.odd == round.signature) round.odd.shape.push_back(1);
      }
      of_name.push_back(std::move(round));
    }
  }
  return script;
}

std::string text_of(const Topology& topology, const std::string& name, const Round& round) {
  Report report{name, {{round.signature, {}}, {round.odd, {round.odd_rank}}}};
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (rank != round.odd_rank) report.values.front().ranks.push_back(rank);
  }
  if (round.odd_rank == 0) std::swap(report.values[0], report.values[1]);
  return mismatch_text(report);
}

std::string layout_of(const Topology& topology) {
  std::string text = "nodes:";
  for (const auto& ranks : topology.ranks_of_node) text += " [" + ranks_text(ranks) + "]";
  return text;
}

void expect_one_history(const Simulation& simulation, const Topology& topology) {
  for (int rank = 1; rank < topology.size(); ++rank) {
    ASSERT_EQ(simulation.history(rank), simulation.history(0)) << "rank " << rank;
  }
}

void expect_every_result(const Simulation& simulation, const Topology& topology,
                         const Script& script) {
  for (const auto& [name, rounds] : script.names) {
    for (int rank = 0; rank < topology.size(); ++rank) {
      const auto& results = simulation.results(rank, name);
      ASSERT_EQ(results.size(), rounds.size()) << name << " on rank " << rank;
      for (std::size_t k = 0; k < rounds.size(); ++k) {
        const std::string expected =
            rounds[k].odd_rank < 0 ? "" : text_of(topology, name, rounds[k]);
        ASSERT_EQ(results[k], expected) << name << " round " << k << " on rank " << rank;
      }
    }
  }
}

/// One schedule of `script`.
void check(const Topology& topology, int id_capacity, const Script& script, Random& random) {
  Simulation simulation(topology, id_capacity, script, random);
  ASSERT_NO_THROW(simulation.run());
  ASSERT_EQ(simulation.problems(), std::vector<std::string>{});
  expect_one_history(simulation, topology);
  if (script.skipping_rank < 0) expect_every_result(simulation, topology, script);
}

class RandomSchedules : public testing::Test {
 protected:
  /// `make(topology)` gives a script; each of `schedules` has a seed of its own, printed on
  /// failure.
  template <class Make>
  void run(int schedules, const std::vector<int>& id_capacities, Make&& make) {
    auto seeds = test::generator();
    for (int i = 0; i < schedules; ++i) {
      const std::uint64_t seed = seeds();
      Random random(seed);
      const Topology topology = random_topology(random);
      const int capacity = id_capacities[static_cast<std::size_t>(
          below(random, static_cast<int>(id_capacities.size())))];
      const Script script = make(topology, random);
      SCOPED_TRACE("schedule " + std::to_string(i) + ", " + layout_of(topology) + ", id capacity " +
                   std::to_string(capacity));
      check(topology, capacity, script, random);
      if (HasFailure()) return;
    }
  }
};

TEST_F(RandomSchedules, NewAndKnownNames) {
  run(300, {16}, [](const Topology& topology, Random& random) {
    return random_script(random, topology.size(), 1 + below(random, 12), 1 + below(random, 4), {});
  });
}

TEST_F(RandomSchedules, MoreNamesThanIds) {
  run(250, {1, 2, 5}, [](const Topology& topology, Random& random) {
    return random_script(random, topology.size(), 3 + below(random, 8), 1 + below(random, 4), {});
  });
}

TEST_F(RandomSchedules, SignaturesThatChangeOnAllRanks) {
  run(250, {16}, [](const Topology& topology, Random& random) {
    return random_script(random, topology.size(), 1 + below(random, 6), 2 + below(random, 5),
                         {.changes = 0.5});
  });
}

TEST_F(RandomSchedules, DisagreementsOfOneRankTheFirstTimeAndLater) {
  run(500, {16}, [](const Topology& topology, Random& random) {
    return random_script(random, topology.size(), 1 + below(random, 6), 2 + below(random, 5),
                         {.changes = 0.1, .disagrees = 0.4});
  });
}

TEST_F(RandomSchedules, EverythingAtOnceWithFewIds) {
  run(500, {1, 2, 3, 5}, [](const Topology& topology, Random& random) {
    return random_script(random, topology.size(), 2 + below(random, 8), 2 + below(random, 5),
                         {.changes = 0.3, .disagrees = 0.3});
  });
}

TEST_F(RandomSchedules, RanksThatWaitInOneOrder) {
  run(300, {1, 2, 4, 16}, [](const Topology& topology, Random& random) {
    Script script = random_script(random, topology.size(), 2 + below(random, 6),
                                  2 + below(random, 4), {.changes = 0.4, .disagrees = 0.2});
    for (const auto& [name, rounds] : script.names) {
      script.order.insert(script.order.end(), rounds.size(), name);
    }
    std::shuffle(script.order.begin(), script.order.end(), random);
    for (int rank = 0; rank < topology.size(); ++rank) {
      script.window.push_back(1 + below(random, 4));
    }
    return script;
  });
}

TEST_F(RandomSchedules, ARankThatLeavesEarlyFailsThoseWhoWaitForIt) {
  run(250, {2, 16}, [](const Topology& topology, Random& random) {
    Script script = random_script(random, topology.size(), 1 + below(random, 6),
                                  1 + below(random, 3), {.changes = 0.2, .disagrees = 0.1});
    if (topology.size() > 1) {
      script.skipping_rank = below(random, topology.size());
      script.skipped = "t0";
      script.names["t0"].back().odd_rank = -1;
    }
    return script;
  });
}

}  // namespace
}  // namespace hora::internal
