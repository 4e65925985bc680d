#include "bench/scale/world.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace bench::scale {

using hora::internal::ControlBlockShape;
using hora::internal::Engine;
using hora::internal::EngineParts;
using hora::internal::NodeControlBlock;
using hora::internal::Signature;
using hora::internal::Topology;
using hora::internal::WakeupFlags;

namespace {

// Sizes of the control block, smaller than in a job, since there are a thousand in one process.
constexpr std::size_t kMailboxBytes = std::size_t{16} << 10;
constexpr std::size_t kControlBytes = std::size_t{256} << 10;

ControlBlockShape shape_of(const Topology& topology, const hora::Settings& settings, int node) {
  ControlBlockShape shape;
  shape.local_size =
      static_cast<int>(topology.ranks_of_node[static_cast<std::size_t>(node)].size());
  shape.id_capacity = settings.id_capacity;
  shape.single_node = topology.nodes() == 1;
  shape.mailbox_bytes = kMailboxBytes;
  shape.control_bytes = kControlBytes;
  return shape;
}

std::vector<int> members_of_slice(const Topology& topology, int local_rank) {
  std::vector<int> members;
  for (const auto& ranks : topology.ranks_of_node) {
    members.push_back(ranks[static_cast<std::size_t>(local_rank)]);
  }
  return members;
}

}  // namespace

Topology topology_of(int ranks, int ranks_per_node, int hop) {
  if (ranks % ranks_per_node != 0) {
    throw std::invalid_argument(std::to_string(ranks) + " ranks are not a multiple of " +
                                std::to_string(ranks_per_node) + " a node");
  }
  Topology topology;
  for (int first = 0; first < ranks; first += ranks_per_node) {
    auto& of_node = topology.ranks_of_node.emplace_back(static_cast<std::size_t>(ranks_per_node));
    std::iota(of_node.begin(), of_node.end(), first);
  }
  topology.radix = hora::internal::tree_radix(topology.nodes(), hop);
  return topology;
}

SimulatedNode::SimulatedNode(const Topology& topology, const hora::Settings& settings, int node)
    : shape_(shape_of(topology, settings, node)),
      memory_(NodeControlBlock::bytes(shape_) / sizeof(Line) + 1),
      cells_(static_cast<std::size_t>(shape_.local_size)),
      sleepers_(cells_.size()) {
  for (int r = 0; r < shape_.local_size; ++r)
    flags_.emplace_back(cells_.data(), shape_.local_size, r);
}

NodeControlBlock SimulatedNode::control_block(int local_rank) {
  return {memory_.data()->bytes, shape_, local_rank, flags(local_rank)};
}

void SimulatedNode::sleeps(int own) {
  const auto index = static_cast<std::size_t>(own);
  sleepers_[index] = {true, cells_[index].engine_wake.load(std::memory_order_relaxed)};
}

std::vector<int> SimulatedNode::take_signalled() {
  std::vector<int> signalled;
  for (std::size_t r = 0; r < sleepers_.size(); ++r) {
    Sleeper& sleeper = sleepers_[r];
    if (!sleeper.asleep) continue;
    if (cells_[r].engine_wake.load(std::memory_order_relaxed) == sleeper.word) continue;
    sleeper.asleep = false;
    signalled.push_back(static_cast<int>(r));
  }
  return signalled;
}

SimulatedRank::SimulatedRank(const Topology& topology, const WorldShape& shape, SimulatedNode& node,
                             int rank)
    : local_rank_(rank % shape.ranks_per_node),
      first_rank_(rank - local_rank_),
      node_(node),
      wake_(requests_, wakes_, kWakeTag, 0),
      control_block_(node.control_block(local_rank_)),
      time_{shape.memory_bandwidth, shape.ranks_per_node},
      space_(time_),
      local_(local_rank_, shape.ranks_per_node, time_) {
  const int own_node = rank / shape.ranks_per_node;
  const std::size_t chunk_bytes =
      hora::internal::chunk_limit(shape.settings.chunk_size, topology.nodes());
  const hora::internal::PipelineOptions options{.node = own_node,
                                                .nodes = topology.nodes(),
                                                .local_rank = local_rank_,
                                                .slices = shape.ranks_per_node,
                                                .topology = topology,
                                                .chunk_bytes = chunk_bytes};
  if (topology.nodes() > 1) {
    link_.emplace(requests_, count_, own_node, members_of_slice(topology, local_rank_));
    cross_.emplace(*link_, hora::internal::cross_options(shape.settings), space_);
    if (local_rank_ == 0) tree_.emplace(requests_, count_, shape.ranks_per_node);
  }
  pipeline_.emplace(options, control_block_, memory_, local_, cross_ ? &*cross_ : nullptr);
  EngineParts parts;
  parts.world = {.topology = topology,
                 .control_block = &control_block_,
                 .memory = &memory_,
                 .data_path = &*pipeline_,
                 .tree = tree_ ? &*tree_ : nullptr};
  parts.rank = rank;
  parts.settings = shape.settings;
  parts.has_core = true;
  engine_.emplace(std::move(parts));
}

void SimulatedRank::carry_out(const std::string& name, const Signature& signature,
                              std::byte* data) {
  const auto submission = engine_->submit({name, signature, data});
  wake_signalled();
  while (!submission->finished()) {
    const bool progress = engine_->progress();
    wake_signalled();
    if (!progress && !submission->finished()) pause();
  }
  engine_->wait(*submission);
}

void SimulatedRank::wake_signalled() {
  for (const int r : node_.take_signalled()) {
    MPI_Send(nullptr, 0, MPI_BYTE, first_rank_ + r, kWakeTag, MPI_COMM_WORLD);
  }
}

void SimulatedRank::pause() {
  control_block_.await_done(pipeline_->awaited());
  node_.flags(local_rank_).sleep(WakeupFlags::Sleeper::engine, [&] {
    node_.sleeps(local_rank_);
    // Stores before the announcement have signalled no rank.
    const bool progress = engine_->progress();
    wake_signalled();
    if (!progress) requests_.await();
    while (wake_.take()) {
    }
    node_.wakes(local_rank_);
    return WakeupFlags::kNoSleep;  // it has slept already
  });
}

}  // namespace bench::scale
