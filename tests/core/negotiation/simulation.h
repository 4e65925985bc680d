/// A job's negotiation in one thread: real leaders, control blocks and name tables; ranks, links
/// and the order in which everything happens are simulated.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"
#include "tests/support/tree_network.h"

namespace hora::internal::test {

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

  /// What went wrong: a decision on a tensor that a rank has not submitted, a wrong location, no
  /// end.
  const std::vector<std::string>& problems() const { return problems_; }

  /// What rank read from its log, in order: "run NAME", "run NAME, resized", "fail NAME: TEXT",
  /// "departed RANKS".
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
  TreeNetwork network_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace hora::internal::test
