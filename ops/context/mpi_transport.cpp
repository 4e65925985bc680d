#include "ops/context/mpi_transport.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/engine/trace_hooks.h"
#include "core/log.h"
#include "core/trace/timeline_path.h"
#include "ops/context/process_tuning.h"
#include "ops/context/settings_agreement.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

std::vector<SettingAssignment> assignments_of_process() {
  std::vector<const char*> entries;
  for (char** entry = environ; entry && *entry; ++entry) entries.push_back(*entry);
  return setting_assignments(entries);
}

}  // namespace

MpiTransport::MpiTransport(int* argc, char*** argv)
    : environment_(std::make_unique<MpiEnvironment>(argc, argv)),
      world_(Communicator::world()),
      data_(Communicator::world()),
      settings_(agree_on_settings(world_, assignments_of_process())) {
  set_log_level(settings_.log_level);
  if (settings_.malloc_tuning && !keep_large_allocations()) {
    log().info("this C library keeps its own thresholds for large allocations");
  }
  node_ = discover_nodes(world_, settings_.ranks_per_node);
  my_node_ = node_.topology.node_of(world_.rank());
  my_local_rank_ = node_.topology.local_rank_of(world_.rank());
  make_board();
  connect_nodes();
  report();
  start_timeline();
}

/// HORA_TIMELINE. Collective: a rank whose file cannot be written is an error on all.
void MpiTransport::start_timeline() {
  if (settings_.timeline.empty()) return;
  std::string problem;
  try {
    trace_.start(timeline_file(settings_.timeline, world_.rank()),
                 identity_of(node_.topology, world_.rank()));
  } catch (const Error& error) {
    problem = std::string("HORA_TIMELINE: ") + error.what();
  }
  throw_together(world_, problem, ErrorCode::invalid_setting);
}

/// The leader's first window holds the board; everybody of the node has that window mapped.
void MpiTransport::make_board() {
  const auto& ranks = node_.topology.ranks_of_node[static_cast<std::size_t>(my_node_)];
  BoardShape shape;
  shape.local_size = static_cast<int>(ranks.size());
  shape.id_capacity = settings_.id_capacity;
  shape.single_node = node_.topology.nodes() == 1;
  // Room for a decision that assigns every id, with a location for each local rank.
  shape.control_bytes += static_cast<std::size_t>(shape.id_capacity) * ranks.size() * 16;

  Location place;
  if (my_local_rank_ == 0) place = node_.memory->allocate(NodeBoard::bytes(shape)).location;
  const auto places = world_.all_gather(std::as_bytes(std::span(&place, 1)));
  std::memcpy(&place, places[static_cast<std::size_t>(ranks.front())].data(), sizeof place);
  board_.emplace(node_.memory->address(0, place), shape, my_local_rank_);
}

void MpiTransport::connect_nodes() {
  const Topology& topology = node_.topology;
  const PipelineOptions options{.node = my_node_,
                                .nodes = topology.nodes(),
                                .local_rank = my_local_rank_,
                                .slices = topology.smallest_node(),
                                .trace = Tracer(&trace_)};
  local_.emplace(my_local_rank_, board_->local_size());
  if (options.nodes > 1) {
    if (my_local_rank_ < options.slices) {
      std::vector<int> members;
      for (const auto& ranks : topology.ranks_of_node) {
        members.push_back(ranks[static_cast<std::size_t>(my_local_rank_)]);
      }
      messages_.emplace(data_, my_node_, std::move(members));
      cross_.emplace(*messages_, CrossOptions{.algorithm = settings_.cross_algorithm,
                                              .small_message = settings_.small_message});
    }
    if (my_local_rank_ == 0) {
      std::vector<int> leaders;
      for (const auto& ranks : topology.ranks_of_node) leaders.push_back(ranks.front());
      tree_.emplace(world_, std::move(leaders), my_node_);
    }
  }
  gpu_ = make_gpu(world_, node_, options, settings_);
  const LocalGroups locals{.memory = &*local_, .device = gpu_ ? &gpu_->group() : nullptr};
  pipeline_.emplace(options, *board_, locals, cross_ ? &*cross_ : nullptr);
  // Nobody may publish on a board that its owner has not seen mapped by all.
  world_.barrier();
}

void MpiTransport::report() const {
  if (my_local_rank_ == 0) {
    const auto advice = binding_advice(cores_of_process(), cores_of_host(), board_->local_size());
    if (advice) log().warn("rank {}: {}", world_.rank(), *advice);
  }
  if (world_.rank() != 0) return;
  const Topology& topology = node_.topology;
  log().info("{} ranks on {} nodes of {} to {} ranks; kernels: {}; between nodes: {}",
             topology.size(), topology.nodes(), topology.smallest_node(), board_->local_size(),
             kernel_instruction_set(),
             settings_.cross_algorithm == CrossAlgorithm::ring ? "ring" : "direct");
}

EngineParts MpiTransport::parts() {
  return {.topology = node_.topology,
          .rank = world_.rank(),
          .settings = settings_,
          .board = &*board_,
          .memory = node_.memory.get(),
          .data_path = &*pipeline_,
          .device = gpu_ ? &gpu_->port() : nullptr,
          .device_index = gpu_ ? gpu_->index() : 0,
          .tree = tree_ ? &*tree_ : nullptr,
          .trace = Tracer(&trace_)};
}

void MpiTransport::disconnect() {
  if (gpu_) gpu_->disconnect();
  tree_.reset();
  data_ = Communicator();
  world_ = Communicator();
  environment_->release();
}

void MpiTransport::abort() noexcept {
  abort_job(1);
}

}  // namespace hora
