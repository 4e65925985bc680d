// Thousands of random schedules of whole negotiations: whatever the order of submissions, messages
// and steps, all ranks read the same decisions, each name gets its result, and nothing is decided
// before every rank has submitted it.
#include "core/negotiation/leader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/text.h"
#include "core/engine/operations.h"
#include "core/engine/set_engine.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/seed.h"
#include "tests/support/tree_network.h"

namespace hora::internal {
namespace {

using Random = std::mt19937_64;

/// One use of a name: what every rank submits, but for one that may differ.
struct Round {
  Signature signature;
  int odd_rank = -1;  ///< -1: all ranks agree
  Signature odd = {};
};

struct Script {
  std::map<std::string, std::vector<Round>> names;
  /// All ranks submit in one order, with at most so many names in flight, as programs do that wait
  /// for results; else each in an order of its own, whatever name is free.
  bool waits = false;
  int skipping_rank = -1;  ///< it never submits the last round of "t0"
};

struct Node {
  // Small, so that mailboxes and the log fill up now and then.
  Node(const Topology& topology, int index, int id_capacity, test::TreeNetwork& network,
       const EagerUse& eager)
      : control_blocks({.local_size = static_cast<int>(
                            topology.ranks_of_node[static_cast<std::size_t>(index)].size()),
                        .id_capacity = id_capacity,
                        .single_node = topology.nodes() == 1,
                        .mailbox_bytes = 1024,
                        .control_bytes = 32768}),
        link(network, index),
        io(topology, index, id_capacity, control_blocks[0], topology.nodes() > 1 ? &link : nullptr,
           kWorld, {}, {}, eager) {}

  test::SharedControlBlock control_blocks;
  test::NetworkTreeLink link;
  LeaderIo io;
  /// Where each local rank's current tensor of a name lies.
  std::map<std::string, std::map<int, Location>> places;
};

/// All ranks of one simulation.
struct Common {
  const Script& script;
  Random& random;
  bool is_single_node;
  /// Everything that went wrong: a decision on a tensor that a rank has not submitted, a wrong
  /// location, no end.
  std::vector<std::string> problems = {};
  std::vector<std::string> order = {};       ///< every name as often as it has rounds
  std::vector<std::uint64_t> executed = {};  ///< units, by rank
  int eager = 0;                             ///< rounds on a node without a decision
};

/// Does what an engine does, but for moving data.
struct Rank {
  Rank(Common& common, Node& home, int world_rank, int local, int id_capacity)
      : all(common),
        node(home),
        rank(world_rank),
        local_rank(local),
        control_block(home.control_blocks[local]),
        table(id_capacity),
        program(common.order),
        most_in_flight(common.script.waits ? 1 + common.random() % 4 : program.size()) {
    if (!common.script.waits) std::ranges::shuffle(program, common.random);
    if (rank == common.script.skipping_rank) program.erase(std::ranges::find(program, "t0"));
  }

  void submit_one() {
    flush_outbox();
    const auto next = std::ranges::find_if(
        program, [&](const std::string& name) { return !in_flight.contains(name); });
    if (closed || next == program.end()) return depart_if_done();
    if (in_flight.size() >= most_in_flight) return;
    if (all.script.waits && next != program.begin()) return;
    const std::string name = *next;
    program.erase(next);
    const Round& round = all.script.names.at(name)[submitted[name]++];
    auto submission = std::make_shared<Operation>();
    submission->name = name;
    submission->signature = round.odd_rank == rank ? round.odd : round.signature;
    submission->memory.set_location(
        {.window = static_cast<std::uint32_t>(rank), .reserved = 0, .offset = next_offset += 64});
    node.places[name][local_rank] = submission->memory.location();
    in_flight.insert(name);
    if (!table.enter(submission)) problem("the name \"" + name + "\" is still in its table");
    announce(submission);
  }

  void announce(const std::shared_ptr<Operation>& submission) {
    const NameEntry& entry = *submission->entry;
    if (!entry.id || entry.signature != submission->signature) return report(*submission);
    const Id id = *entry.id;
    submission->id = id;
    table.set_waiting(id, submission);
    submission->repeats = all.is_single_node || all.random() % 3 > 0;
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
    const auto batch = test::next_batch(control_block);
    if (!batch) return;
    Decision decision;
    decision.run = batch->ids;
    if (batch->kind == LogBatch::Kind::control) {
      decision = std::get<Decision>(decode(batch->payload).value());
    }
    batch->kind == LogBatch::Kind::complete ? finish_eager(decision.run.front())
                                            : execute(decision);
  }

  void finish_eager(Id id) {
    const auto submission = table.take_waiting(id);
    if (!submission) return problem("an eager round, which it has not submitted, is complete");
    end(*submission, {});
  }

  /// The number of this rank's round, in as many bytes as the tensor has.
  std::vector<std::uint8_t> sum_of_node(Id id) {
    const auto submission = table.waiting(id);
    if (!submission) problem("its leader sums up what it has not submitted");
    if (!submission) return {};
    return std::vector<std::uint8_t>(submission->signature.bytes(),
                                     static_cast<std::uint8_t>(submitted[submission->name]));
  }

  void check_sums(std::span<const NodeSum> sums) {
    ++all.eager;
    const auto own = sum_of_node(sums.front().id);
    if (std::ranges::any_of(sums, [&](const NodeSum& sum) { return sum.data != own; })) {
      problem("sums of several rounds");
    }
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
    all.executed[static_cast<std::size_t>(rank)] = executed;
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

  /// As in the data path: a result is there, and the tensor free, once all ranks have come as far.
  void complete() {
    while (!running.empty() && running.front().first <= std::ranges::min(all.executed)) {
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
    all.problems.push_back("rank " + std::to_string(rank) + ": " + text);
  }

  Common& all;
  Node& node;
  int rank;
  int local_rank;
  NodeControlBlock& control_block;
  NameTable table;
  std::vector<std::string> program;  ///< the names that are left to submit
  std::size_t most_in_flight;
  std::map<std::string, std::size_t> submitted;
  std::set<std::string> in_flight;
  std::uint64_t next_offset = 0;
  std::uint64_t executed = 0;
  std::deque<std::pair<std::uint64_t, std::shared_ptr<Operation>>> running;
  std::deque<std::vector<std::byte>> outbox;
  bool closed = false;
  bool departed = false;
  bool all_departed = false;
  /// Everything that it read from its log, in order: "run NAME", "run NAME, resized", "fail NAME:
  /// TEXT", "departed RANKS".
  std::vector<std::string> history;
  /// By name: result_of() each round.
  std::map<std::string, std::vector<std::string>> results;
};

/// Messages between leaders stay in order between each pair and are otherwise delivered in random
/// order; every rank, leader and link has a random speed of its own.
struct Simulation {
  Simulation(const Topology& topology, int id_capacity, const Script& script, Random& random)
      : common{.script = script,
               .random = random,
               .is_single_node = topology.nodes() == 1,
               .executed = std::vector<std::uint64_t>(static_cast<std::size_t>(topology.size()))},
        network(topology.nodes(), &random),
        ranks(static_cast<std::size_t>(topology.size())) {
    for (const auto& [name, rounds] : script.names) {
      common.order.insert(common.order.end(), rounds.size(), name);
    }
    std::ranges::shuffle(common.order, random);
    for (int n = 0; n < topology.nodes(); ++n) {
      const int first = topology.ranks_of_node[static_cast<std::size_t>(n)].front();
      const auto leader = [this, first]() -> Rank& {
        return *ranks[static_cast<std::size_t>(first)];
      };
      const EagerUse eager{
          .most_bytes = 64,
          .node_sum = [leader](Id id) { return leader().sum_of_node(id); },
          .spread = [leader](std::span<const NodeSum> sums) { leader().check_sums(sums); }};
      nodes.push_back(std::make_unique<Node>(topology, n, id_capacity, network, eager));
      int local = 0;
      for (const int rank : topology.ranks_of_node[static_cast<std::size_t>(n)]) {
        ranks[static_cast<std::size_t>(rank)] =
            std::make_unique<Rank>(common, *nodes.back(), rank, local++, id_capacity);
      }
    }
  }

  /// Until every rank has its results, has departed and knows that all have; gives up when that
  /// takes too many steps. Throws what leaders throw.
  void run() {
    // Speeds over two orders of magnitude.
    std::vector<double> speeds;
    std::uniform_real_distribution<double> exponent(0.0, 2.0);
    for (std::size_t i = 0; i < 2 * ranks.size() + nodes.size(); ++i) {
      speeds.push_back(std::pow(10.0, exponent(common.random)));
    }
    std::discrete_distribution<std::size_t> choose(speeds.begin(), speeds.end());
    constexpr int kMostSteps = 4000000;
    for (int step = 0; step < kMostSteps && common.problems.size() <= 5; ++step) {
      if (std::ranges::all_of(ranks, &Rank::all_departed)) return;
      const std::size_t actor = choose(common.random);
      if (actor < ranks.size()) {
        ranks[actor]->submit_one();
      } else if (actor < 2 * ranks.size()) {
        ranks[actor - ranks.size()]->read_one();
      } else {
        nodes[actor - 2 * ranks.size()]->io.work(Duration(step));
      }
    }
    common.problems.push_back("no end");
    for (const auto& rank : ranks) {
      for (const std::string& name : rank->in_flight) rank->problem("waits for " + name);
    }
  }

  Common common;
  test::TreeNetwork network;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Rank>> ranks;
};

int below(Random& random, int limit) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
}

Signature shaped(std::int64_t extent) {
  return {.shape = {extent}};
}

Topology random_topology(Random& random) {
  const int nodes = 1 + below(random, 9);
  std::vector<int> group_of_rank;
  for (int node = 0; node < nodes; ++node) {
    for (int r = 0; r <= below(random, 3); ++r) group_of_rank.push_back(node);
  }
  if (random() % 2 == 0) std::shuffle(group_of_rank.begin(), group_of_rank.end(), random);
  Topology topology = make_topology(group_of_rank, 0);
  topology.radix = 2 + below(random, 4);
  return topology;
}

/// Schedules to draw.
struct Schedules {
  const char* of;
  int count;
  std::vector<int> id_capacities;
  int least_names, other_names;  ///< the least number, and how many there are from it on
  int least_rounds, other_rounds;
  double changes = 0;         ///< the chance that a name has another signature than before
  double disagrees = 0;       ///< the chance that one rank has another signature than the rest
  bool waits = false;         ///< Script::waits
  bool leaves_early = false;  ///< one rank
};

Script random_script(Random& random, int ranks, const Schedules& schedules) {
  std::bernoulli_distribution changes(schedules.changes), disagrees(schedules.disagrees);
  const int names = schedules.least_names + below(random, schedules.other_names);
  const int rounds = schedules.least_rounds + below(random, schedules.other_rounds);
  Script script{.names = {}, .waits = schedules.waits};
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
  if (schedules.leaves_early && ranks > 1) {
    script.skipping_rank = below(random, ranks);
    script.names["t0"].back().odd_rank = -1;
  }
  return script;
}

/// The result of a round on every rank: empty for a run, else the error's text.
std::string result_of(const Topology& topology, const std::string& name, const Round& round) {
  if (round.odd_rank < 0) return "";
  Report report{name, {{round.signature, {}}, {round.odd, {round.odd_rank}}}};
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (rank != round.odd_rank) report.values.front().ranks.push_back(rank);
  }
  if (round.odd_rank == 0) std::swap(report.values[0], report.values[1]);
  return mismatch_text(report);
}

/// Draws schedules, each of a seed of its own. Adds up how many rounds were eager.
void expect_right(const Schedules& schedules, Random& seeds, int& eager) {
  for (int i = 0; i < schedules.count && !testing::Test::HasFailure(); ++i) {
    Random random(seeds());
    const Topology topology = random_topology(random);
    const int id_capacity = schedules.id_capacities[random() % schedules.id_capacities.size()];
    const Script script = random_script(random, topology.size(), schedules);
    std::string layout = "nodes:";
    for (const auto& ranks : topology.ranks_of_node) layout += " [" + ranks_text(ranks) + "]";
    SCOPED_TRACE(std::string(schedules.of) + ", schedule " + std::to_string(i) + ", " + layout +
                 ", id capacity " + std::to_string(id_capacity));
    Simulation simulation(topology, id_capacity, script, random);
    ASSERT_NO_THROW(simulation.run());
    ASSERT_EQ(simulation.common.problems, std::vector<std::string>{});
    eager += simulation.common.eager;
    for (const auto& rank : simulation.ranks) {
      ASSERT_EQ(rank->history, simulation.ranks[0]->history) << "rank " << rank->rank;
      for (const auto& [name, rounds] : script.names) {
        std::vector<std::string> expected;
        for (const Round& round : rounds) expected.push_back(result_of(topology, name, round));
        if (script.skipping_rank >= 0 && name == "t0") {
          expected.pop_back();
          if (rank->results[name].size() > expected.size()) expected.push_back("shut down");
        }
        ASSERT_EQ(rank->results[name], expected) << name << " on rank " << rank->rank;
      }
    }
  }
}

TEST(RandomSchedules, AreReadAlikeByAllAndGiveEachNameItsResult) {
  const Schedules all[] = {
      {"new and known names", 300, {16}, 1, 12, 1, 4},
      {"more names than ids", 250, {1, 2, 5}, 3, 8, 1, 4},
      {"signatures that change on all ranks", 250, {16}, 1, 6, 2, 5, 0.5},
      {"disagreements, the first time and later", 500, {16}, 1, 6, 2, 5, 0.1, 0.4},
      {"everything at once with few ids", 500, {1, 2, 3, 5}, 2, 8, 2, 5, 0.3, 0.3},
      {"ranks that wait in one order", 300, {1, 2, 4, 16}, 2, 6, 2, 4, 0.4, 0.2, true},
      {"a rank that leaves fails those who wait", 250, {2, 16}, 1, 6, 1, 3, 0.2, 0.1, false, true}};
  auto seeds = test::generator();
  int eager = 0;
  for (const Schedules& schedules : all) expect_right(schedules, seeds, eager);
}

TEST(RandomSchedules, OfEagerNamesAreRightWhateverChangesMeanwhile) {
  const Schedules all[] = {
      {"one name or two, again and again", 200, {16}, 1, 2, 10, 30, 0, 0, true},
      {"signatures that change", 300, {16}, 1, 2, 10, 30, 0.1, 0, true},
      {"disagreements", 300, {16}, 1, 2, 10, 30, 0.05, 0.05, true},
      {"few ids", 300, {1, 2, 3}, 1, 4, 10, 20, 0.05, 0.05, true},
      {"a rank that leaves", 300, {2, 16}, 1, 1, 10, 20, 0.05, 0, false, true}};
  auto seeds = test::generator();
  for (const Schedules& schedules : all) {
    int eager = 0;
    expect_right(schedules, seeds, eager);
    EXPECT_GT(eager, 1000) << schedules.of;
  }
}

}  // namespace
}  // namespace hora::internal
