/// The simulated job: nodes whose ranks share memory, each rank with an engine that it steps
/// itself.
#pragma once

#include <hora/settings.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/scale/links.h"
#include "bench/scale/memory.h"
#include "core/engine/engine.h"
#include "ops/cross/cross_group.h"
#include "ops/hierarchy/pipeline.h"

namespace bench::scale {

struct WorldShape {
  int ranks = 16;
  int ranks_per_node = 8;
  double memory_bandwidth = 1e11;  ///< of a node, bytes a second
  hora::Settings settings;
};

/// Shared by the ranks of one node: the control block, and who sleeps.
class SimulatedNode {
 public:
  SimulatedNode(const hora::internal::Topology& topology, const hora::Settings& settings, int node);

  hora::internal::NodeControlBlock control_block(int local_rank);
  /// Local rank `own` is about to block: begins. False: it has been signalled since `before`.
  void sleeps(int own);
  void wakes(int own) { sleepers_[static_cast<std::size_t>(own)].asleep = false; }
  hora::internal::WakeupFlags& flags(int local_rank) {
    return flags_[static_cast<std::size_t>(local_rank)];
  }
  /// Local ranks that have been signalled while they slept, once each.
  std::vector<int> take_signalled();

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Sleeper {
    bool asleep = false;
    std::uint32_t word = 0;
  };
  hora::internal::ControlBlockShape shape_;
  std::vector<Line> memory_;
  std::vector<hora::internal::WakeupFlags::Cell> cells_;
  std::vector<hora::internal::WakeupFlags> flags_;
  std::vector<Sleeper> sleepers_;
};

/// One rank: hora's whole engine, without a thread, over SMPI's messages.
///
/// Where the engine would wake a rank of its node by a futex, a message without bytes goes to it
/// over the loopback of the simulated host: its latency is the wake-up's.
/// Thread rule: the simulated rank.
class SimulatedRank {
 public:
  /// `topology`, `node` outlive it.
  SimulatedRank(const hora::internal::Topology& topology, const WorldShape& shape,
                SimulatedNode& node, int rank);
  SimulatedRank(const SimulatedRank&) = delete;
  SimulatedRank& operator=(const SimulatedRank&) = delete;
  ~SimulatedRank() { engine_->stop(); }

  /// A collective by name from its submission until this rank has its result.
  void carry_out(const std::string& name, const hora::internal::Signature& signature,
                 std::byte* data);
  hora::internal::NodeMemory& memory() { return memory_; }
  const MessageCount& count() const { return count_; }

 private:
  void wake_signalled();
  void pause();

  int local_rank_;
  int first_rank_;  ///< of the node
  SimulatedNode& node_;
  MessageCount count_;
  MessageCount wakes_;
  OpenRequests requests_;
  StandingReceive wake_;
  hora::internal::NodeControlBlock control_block_;
  SimulatedMemory memory_;
  MemoryTime time_;
  SimulatedSpace space_;
  SimulatedGroup local_;
  std::optional<SmpiTreeLink> tree_;
  std::optional<SmpiPointToPoint> link_;
  std::optional<hora::internal::MessageCrossGroup> cross_;
  std::optional<hora::internal::Pipeline> pipeline_;
  std::optional<hora::internal::Engine> engine_;
};

/// Consecutive ranks in nodes of `ranks_per_node`.
hora::internal::Topology topology_of(int ranks, int ranks_per_node, int hop);

}  // namespace bench::scale
