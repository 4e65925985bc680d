// Thousands of random schedules of whole negotiations: whatever the order of submissions, messages
// and steps, all ranks read the same decisions, each name gets its result, and nothing is decided
// before every rank has submitted it.
#include "core/negotiation/leader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/negotiation/overdue_names.h"
#include "tests/core/negotiation/simulation.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Round;
using test::Script;
using test::Simulation;

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
