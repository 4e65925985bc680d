#include "tests/core/negotiation/simulation.h"

#include <algorithm>
#include <cmath>

#include "tests/core/negotiation/simulation_parts.h"

namespace hora::internal::test {

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
