/// What is simulated: hora, and what it stands beside.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/world.h"

namespace bench::scale {

/// One operation of all ranks, which begin at one moment.
struct Round {
  std::string name;                 ///< "contender/operation"
  double seconds = 0;               ///< of the slowest rank
  std::uint64_t root_messages = 0;  ///< that rank 0 sent and received
};

/// The rounds of a run, as the ranks find them. They are in one process and one thread: no locks.
class Rounds {
 public:
  /// Blocks the simulated rank until the next round of all ranks begins, which is always at the
  /// same simulated time; the round's number.
  std::size_t begin(int rank, const std::string& name);
  void end(std::size_t round, int rank, const MessageCount& before, const MessageCount& after);
  const std::vector<Round>& all() const { return rounds_; }

 private:
  /// Longer than any round, in simulated seconds.
  static constexpr double kSpacing = 1000;
  std::vector<Round> rounds_;
  std::vector<std::size_t> next_;  ///< by rank
};

struct Job {
  WorldShape shape;
  hora::internal::Topology topology;
  std::vector<std::unique_ptr<SimulatedNode>> nodes;
  std::vector<std::size_t> sizes;  ///< of allreduces, bytes
  int repetitions = 2;
  bool coordinator = true;
  bool ring = true;
  std::size_t ring_sizes = 2;  ///< so many of the sizes
  Rounds rounds;
};

/// hora's engine: a barrier by a new name, by a known one, and allreduces by known names. Results
/// of real memory (memory.h) are checked. Throws std::runtime_error for a wrong one.
void run_hora(Job& job, int rank);

/// Every rank (`ranks`), or every leader for its node, sends what it is ready for to rank 0, which
/// answers each one: as Horovod's controller gathers requests.
enum class Senders { ranks, leaders };
void run_coordinator(Job& job, int rank, Senders senders);

/// A ring over all ranks, without negotiation.
void run_ring(Job& job, int rank);

}  // namespace bench::scale
