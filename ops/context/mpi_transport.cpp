#include "ops/context/mpi_transport.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/bounded_reader.h"
#include "core/engine/parts.h"
#include "core/log.h"
#include "core/trace/timeline_file.h"
#include "ops/context/initial_sets.h"
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

/// From this process's environment, for ranks agree on settings only after all have called init().
/// What is wrong in it is an error then.
Patience patience_of_process() {
  constexpr std::string_view kNeeded[] = {"HORA_STALL_WARNING", "HORA_INIT_TIMEOUT",
                                          "HORA_LOG_LEVEL"};
  std::vector<SettingAssignment> assignments = assignments_of_process();
  std::erase_if(assignments, [&](const SettingAssignment& assignment) {
    return std::ranges::find(kNeeded, assignment.variable) == std::end(kNeeded);
  });
  Settings mine;
  try {
    mine = parse_settings(assignments);
  } catch (const Error&) {
  }
  set_log_level(mine.log_level);
  return {mine.stall_warning, mine.init_timeout, [](const std::string& text) { log().warn(text); }};
}

Communicator communicator_of(const InitOptions& options) {
  const Patience patience = patience_of_process();
  if (options.communicator) {
    if (!options.ranks.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "hora::init: InitOptions has ranks and a communicator: give one of them");
    }
    return Communicator::of(*static_cast<const MPI_Comm*>(options.communicator), patience);
  }
  return options.ranks.empty() ? Communicator::world(patience)
                               : Communicator::of(options.ranks, patience);
}

}  // namespace

MpiTransport::MpiTransport(int* argc, char*** argv, const InitOptions& options)
    : environment_(std::make_unique<MpiEnvironment>(argc, argv)),
      world_(communicator_of(options)),
      data_(world_.duplicate()),
      settings_(agree_on_settings(world_, assignments_of_process())) {
  set_log_level(settings_.log_level);
  agree_on_sets(world_, options.process_sets);
  if (settings_.malloc_tuning && !keep_large_allocations()) {
    log().info("this C library keeps its own thresholds for large allocations");
  }
  node_ = discover_nodes(world_, settings_.ranks_per_node);
  SetContext context{.rank = world_.rank(),
                     .settings = &settings_,
                     .memory = node_.memory.get(),
                     .node_memory = node_.smallest_memory,
                     .trace = Tracer(&trace_)};
  NodeControlBlock control_block = make_control_block();
  path_.emplace(context, 0, node_.topology, *node_.memory, std::move(control_block), world_, data_);
  gpu_ = make_gpu(world_, node_, pipeline_options(node_.topology, context, 0),
                  path_->control_block(), settings_, path_->messages());
  path_->connect(gpu_ ? gpu_->groups() : GpuGroups());
  context.gpu = gpu_.get();
  sets_.emplace(context, node_.topology,
                node_.topology.nodes() > 1 ? world_.duplicate() : Communicator(),
                path_->control_block());
  // No rank may write to a control block before its owner has seen it mapped by all.
  world_.barrier();
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

/// The leader's first window holds the control block; every rank of the node has that window
/// mapped.
NodeControlBlock MpiTransport::make_control_block() {
  const int node = node_.topology.node_of(world_.rank());
  const int local_rank = node_.topology.local_rank_of(world_.rank());
  const auto& ranks = node_.topology.ranks_of_node[static_cast<std::size_t>(node)];
  const ControlBlockShape shape = control_block_shape(node_.topology, node, settings_, true);
  Location place;
  if (local_rank == 0) place = node_.memory->allocate(NodeControlBlock::bytes(shape)).location;
  const auto places = world_.all_gather(std::as_bytes(std::span(&place, 1)));
  const int leader = ranks.front();
  place = BoundedReader(places[static_cast<std::size_t>(leader)],
                        {"the place of a node's control_block", leader})
              .take<Location>();
  return {node_.memory->address(0, place, NodeControlBlock::bytes(shape)), shape, local_rank};
}

void MpiTransport::report() {
  const NodeControlBlock& control_block = path_->control_block();
  if (control_block.local_rank() == 0) {
    const auto advice =
        binding_advice(cores_of_process(), cores_of_host(), control_block.local_size());
    if (advice) log().warn("rank {}: {}", world_.rank(), *advice);
  }
  if (world_.rank() != 0) return;
  const Topology& topology = node_.topology;
  log().info("{} ranks on {} nodes of {} to {} ranks; kernels: {}; between nodes: {}",
             topology.size(), topology.nodes(), topology.smallest_node(),
             control_block.local_size(), kernel_instruction_set(),
             settings_.cross_algorithm == CrossAlgorithm::ring ? "ring" : "direct");
}

EngineParts MpiTransport::parts() {
  return {.world = path_->parts(),
          .rank = world_.rank(),
          .settings = settings_,
          .has_core = node_.host_size <= cores_of_host() && cores_of_process() > 1,
          .threads_supported = environment_->thread_multiple(),
          .device = gpu_ ? &gpu_->port() : nullptr,
          .device_heap = gpu_ ? &gpu_->heap() : nullptr,
          .device_index = gpu_ ? gpu_->index() : 0,
          .sets = &*sets_,
          .trace = Tracer(&trace_)};
}

void MpiTransport::disconnect() {
  if (gpu_) gpu_->disconnect();
  path_->disconnect();
  sets_->disconnect();
  data_ = Communicator();
  world_ = Communicator();
  environment_->release();
}

void MpiTransport::abort() noexcept {
  abort_job(1);
}

void MpiTransport::abort_at_exit(std::chrono::milliseconds grace) noexcept {
  abandon_job(grace);
}

}  // namespace hora
