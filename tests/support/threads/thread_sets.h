/// Process sets of a ThreadWorld, and what every set there is made of.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/support/threads/heap_memory.h"
#include "tests/support/threads/meeting.h"
#include "tests/support/threads/thread_world.h"
#include "tests/support/tree_network.h"

namespace hora::internal::test {

/// Connects the nodes of one set.
struct SetWires {
  SetWires(int nodes, int slices);
  TreeNetwork leaders;
  std::vector<std::unique_ptr<Meeting>> meetings;  ///< by slice
};

/// The wires of all sets, made by the first rank that needs them. Thread rule: any thread.
class WireRoom {
 public:
  SetWires& wires(ProcessSet set, const Topology& topology);

 private:
  std::mutex mutex_;
  std::map<ProcessSet, std::unique_ptr<SetWires>> wires_;
};

/// One rank's connections in one set.
class ThreadPath {
 public:
  ThreadPath(const Topology& topology, int rank, NodeControlBlock control_block, NodeMemory& memory,
             SetWires& wires, const Settings& settings, MemoryNodes memory_nodes,
             const RankDevice& device, const Tracer& trace);
  NodeControlBlock& control_block() { return control_block_; }
  DataPath& data_path() { return *pipeline_; }
  TreeLink* tree() { return link_ ? &*link_ : nullptr; }

 private:
  NodeControlBlock control_block_;
  MemoryGroup group_;
  std::optional<MeetingCrossGroup> cross_;
  std::optional<NetworkTreeLink> link_;
  std::optional<Pipeline> pipeline_;
};

/// Memory nodes of a set; all in one unless the settings say otherwise.
MemoryNodes thread_memory_nodes(const Topology& world, const Topology& set,
                                const Settings& settings);

ControlBlockShape thread_control_block_shape(const Topology& topology, int node,
                                             const Settings& settings);

class ThreadSets final : public SetFactory {
 public:
  ThreadSets(WireRoom& room, const Topology& topology, int rank, const Settings& settings,
             HeapNode& node, const NodeControlBlock& control_block, const Tracer& trace,
             decltype(ThreadWorldOptions::set_device) device)
      : room_(room),
        topology_(topology),
        rank_(rank),
        settings_(settings),
        node_(node),
        control_block_(control_block),
        trace_(trace),
        device_(std::move(device)) {}
  std::size_t control_block_bytes(const Topology& of_set, int node) const override {
    return NodeControlBlock::bytes(thread_control_block_shape(of_set, node, settings_));
  }
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override;

 private:
  WireRoom& room_;
  Topology topology_;
  int rank_;
  const Settings& settings_;
  HeapNode& node_;
  const NodeControlBlock& control_block_;
  Tracer trace_;
  decltype(ThreadWorldOptions::set_device) device_;
};

}  // namespace hora::internal::test
