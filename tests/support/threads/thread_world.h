/// A world of ranks in one process: real engines, control blocks and pipelines over plain memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "core/engine/engine.h"
#include "core/engine/interfaces.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal::test {

class WireRoom;

/// Gives a rank a device; all outlive the world.
struct RankDevice {
  DevicePort* port = nullptr;
  DeviceHeap* heap = nullptr;
  LocalGroup* group = nullptr;
  ExchangeGroup* exchange = nullptr;
  CrossGroup* cross = nullptr;            ///< null: that of plain memory
  bool spans_nodes = false;               ///< groups of all ranks, whatever their nodes
  std::function<void()> disconnect = {};  ///< of a process set that is removed
};

struct ThreadWorldOptions {
  std::vector<int> node_sizes = {1};  ///< ranks of each node
  Settings settings;
  bool engines = true;         ///< false: the caller makes engines of parts()
  bool engine_threads = true;  ///< false: the test steps the engines
  /// By (rank, node, local rank); empty: no devices.
  std::function<RankDevice(int, int, int)> device = {};
  /// Gives a member of another set its device: by rank, the set's plan, its node's control block.
  std::function<RankDevice(int, const SetPlan&, const NodeControlBlock&)> set_device = {};
  /// By rank; empty: no timelines. They outlive the world.
  std::function<Tracer(int)> trace = {};
  /// By rank; empty: no records. They outlive the world.
  std::function<FlightRecorder*(int)> flight = {};
};

/// Thread rule: engine(r) as Engine says; construction and destruction by one thread.
class ThreadWorld {
 public:
  explicit ThreadWorld(const ThreadWorldOptions& options);
  ~ThreadWorld();

  int size() const;
  Engine& engine(int rank);
  /// Parts of the rank's engine.
  EngineParts parts(int rank);
  NodeMemory& memory(int rank);
  /// Operations between nodes so far, of rank 0 and its peers, of the world alone.
  std::uint64_t crossings() const;
  /// One round of progress() over all engines; true if any made progress.
  bool progress();

 private:
  struct Rank;
  struct Node;
  std::unique_ptr<WireRoom> room_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace hora::internal::test
