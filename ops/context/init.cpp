// hora::init: creates and owns all parts of a rank.
#include <hora/build_info.h>
#include <hora/context.h>
#include <hora/error.h>
#include <hora/mpi.h>
#include <hora/process_set.h>
#include <hora/settings.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/engine/engine.h"
#include "core/engine/interfaces.h"
#include "core/flight/flight_recorder.h"
#include "core/trace/trace.h"
#include "ops/context/gpu.h"
#include "ops/context/node_discovery.h"
#include "ops/cross/cross_group.h"
#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/local/kernels.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/environment.h"

namespace hora::internal {
namespace {

/// The parts of a rank that all process sets are built on. References outlive the sets.
struct SetContext {
  const Settings& settings;
  const NodeDiscovery& node;
  const Communicator& world;  ///< of all ranks, only for making duplicates
  Tracer trace;
  Gpu* gpu;  ///< null where this rank has none

  int rank() const { return world.rank(); }
  MemoryNodes memory_nodes(const Topology& set) const {
    return MemoryNodes::of(set, node.memory_nodes);
  }
};

/// Sets beside the world have fewer names and shorter queues.
constexpr int kSetIds = 1024;
constexpr std::size_t kSetMailbox = std::size_t{64} << 10;
constexpr std::size_t kSetControl = std::size_t{2} << 20;

/// The control block of node `node` of a set; `world`: of the set of all ranks.
ControlBlockShape control_block_shape(const Topology& topology, int node, const Settings& settings,
                                      bool world) {
  ControlBlockShape shape;
  shape.local_size =
      static_cast<int>(topology.ranks_of_node[static_cast<std::size_t>(node)].size());
  shape.id_capacity = world ? settings.id_capacity : std::min(settings.id_capacity, kSetIds);
  shape.single_node = topology.nodes() == 1;
  if (!world) {
    shape.mailbox_bytes = kSetMailbox;
    shape.control_bytes = kSetControl;
  }
  // Room for a decision that assigns every id, with a location for each local rank.
  shape.control_bytes +=
      static_cast<std::size_t>(shape.id_capacity) * static_cast<std::size_t>(shape.local_size) * 16;
  return shape;
}

/// Communicators first, where the set has several nodes, then a member's data path and
/// negotiation's link over them.
class MpiSet final : public SetTransport {
 public:
  /// `flags`: the world's, which comes first. The context outlives this.
  MpiSet(const SetContext& context, const SetPlan& plan, std::optional<WakeupFlags>& flags)
      : context_(context), plan_(plan) {
    const int node = plan.topology.node_of(context.rank());
    if (node < 0) return;
    const bool is_world = plan.id == kWorld;
    const ControlBlockShape shape =
        control_block_shape(plan.topology, node, context.settings, is_world);
    std::byte* const block = context.node.memory->address(
        plan.control_block_owner, plan.control_block, NodeControlBlock::bytes(shape));
    const int local_rank = plan.topology.local_rank_of(context.rank());
    if (is_world) {
      control_block_.emplace(block, shape, local_rank);
      flags = control_block_->wakeup_flags();
      return;
    }
    std::vector<int> members;
    for (const int rank : plan.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
      members.push_back(context.node.topology.local_rank_of(rank));
    }
    control_block_.emplace(block, shape, local_rank, flags->among(members));
    member_memory_.emplace(*context.node.memory, std::move(members));
  }

  bool poll() override {
    if (plan_.topology.nodes() > 1 && !make_communicators()) return false;
    if (control_block_) connect();
    return true;
  }

  SetParts parts() override {
    return {.topology = plan_.topology,
            .control_block = &*control_block_,
            .memory = &memory(),
            .data_path = &*pipeline_,
            .tree = tree_ ? &*tree_ : nullptr,
            .memory_nodes = context_.memory_nodes(plan_.topology),
            .device_spans_nodes = gpu_groups_.spans_nodes};
  }

  void disconnect() override {
    tree_.reset();
    if (gpu_) gpu_->disconnect();
    for (Communicator& communicator : communicators_) communicator = Communicator();
  }

 private:
  bool make_communicators() {
    for (; made_ < communicators_.size(); ++made_) {
      if (!pending_) pending_.emplace(context_.world);
      auto communicator = pending_->poll();
      if (!communicator) return false;
      communicators_[made_] = std::move(*communicator);
      pending_.reset();
    }
    return true;
  }

  void connect() {
    PipelineOptions options = PipelineOptions::of(plan_.topology, context_.rank());
    options.memory_nodes = context_.memory_nodes(plan_.topology);
    options.trace = context_.trace.of_set(plan_.id);
    options.chunk_bytes = chunk_limit(context_.settings.chunk_size, options.nodes);
    options.job_memory = context_.node.smallest_memory * static_cast<std::uint64_t>(options.nodes);
    const auto& [negotiation, data] = communicators_;
    local_.emplace(control_block_->local_rank(), control_block_->local_size());
    if (options.nodes > 1 && options.local_rank < options.slices) {
      messages_.emplace(data, options.node, rank_in_each_node(options.local_rank),
                        message_limit(context_.settings.message_size, context_.node.over_sockets));
      cross_.emplace(*messages_, cross_options(context_.settings));
    }
    if (options.nodes > 1 && options.local_rank == 0) {
      tree_.emplace(negotiation, rank_in_each_node(0), options.node);
    }
    if (context_.gpu) {
      gpu_ = context_.gpu->make_set(plan_.id, options, *control_block_,
                                    messages_ ? &*messages_ : nullptr);
      gpu_groups_ = gpu_->groups();
    }
    pipeline_.emplace(options, *control_block_, memory(), *local_, cross_ ? &*cross_ : nullptr,
                      gpu_groups_);
  }
  std::vector<int> rank_in_each_node(int local_rank) const {
    std::vector<int> ranks;
    for (const auto& of_node : plan_.topology.ranks_of_node) {
      ranks.push_back(of_node[static_cast<std::size_t>(local_rank)]);
    }
    return ranks;
  }
  NodeMemory& memory() {
    if (member_memory_) return *member_memory_;
    return *context_.node.memory;
  }

  const SetContext& context_;
  SetPlan plan_;
  std::optional<NodeControlBlock> control_block_;  ///< a member's
  std::optional<MemberMemory> member_memory_;      ///< likewise; of the world none: as the node's
  std::optional<PendingDuplicate> pending_;
  std::size_t made_ = 0;
  std::array<Communicator, 2> communicators_;  ///< of negotiation, of data; carry nothing else

  // A member's, in the order in which they are needed.
  std::optional<MemoryGroup> local_;
  std::optional<MpiPointToPoint> messages_;
  std::optional<MessageCrossGroup> cross_;
  std::optional<MpiTreeLink> tree_;
  std::unique_ptr<GpuSet> gpu_;  ///< null where there is none; uses the messages
  DeviceGroups gpu_groups_;
  std::optional<Pipeline> pipeline_;
};

/// A set of one node needs no communicator. One of several nodes has two of its own, of negotiation
/// and of data, duplicates of the world's made without blocking (MPI_Comm_idup), so that its
/// messages meet no others.
class MpiSets final : public SetFactory {
 public:
  explicit MpiSets(const SetContext& context) : context_(context) {}

  std::size_t control_block_bytes(const Topology& of_set, int node) const override {
    return NodeControlBlock::bytes(control_block_shape(of_set, node, context_.settings, false));
  }
  std::unique_ptr<SetTransport> begin(const SetPlan& plan) override {
    return std::make_unique<MpiSet>(context_, plan, wakeup_flags_);
  }

 private:
  SetContext context_;
  std::optional<WakeupFlags> wakeup_flags_;  ///< the world's
};

}  // namespace
}  // namespace hora::internal

namespace hora {
using namespace internal;
namespace {

/// One runtime a process: MPI's world, the engine thread and the malloc settings are the process's.
class OnlyRuntime {
 public:
  OnlyRuntime() {
    if (running.exchange(true)) {
      throw Error(
          ErrorCode::invalid_use,
          "hora::init: hora is running in this process already: keep its Context, or shut it "
          "down first");
    }
  }
  OnlyRuntime(const OnlyRuntime&) = delete;
  OnlyRuntime& operator=(const OnlyRuntime&) = delete;
  /// Allows another init().
  ~OnlyRuntime() { running.store(false); }

  static inline std::atomic<bool> running{false};
};

std::vector<SettingAssignment> assignments_of_process() {
  std::vector<const char*> entries;
  for (char** entry = environ; entry && *entry; ++entry) entries.push_back(*entry);
  return setting_assignments(entries);
}

/// Ranks agree on settings only after all have called init(). What is wrong in them is an error
/// then.
Patience patience_of(std::vector<SettingAssignment> assignments) {
  constexpr std::string_view kNeeded[] = {"HORA_STALL_WARNING", "HORA_INIT_TIMEOUT",
                                          "HORA_LOG_LEVEL"};
  std::erase_if(assignments, [&](const SettingAssignment& assignment) {
    return std::ranges::find(kNeeded, assignment.variable) == std::end(kNeeded);
  });
  Settings own;
  try {
    own = parse_settings(assignments);
  } catch (const Error&) {
  }
  set_log_level(own.log_level);
  return {own.stall_warning, own.init_timeout, [](const std::string& text) { log().warn(text); }};
}

/// How the application has called init().
struct InitCall {
  const InitOptions& options;
  int* argc = nullptr;
  char*** argv = nullptr;
  std::optional<MPI_Comm> communicator = std::nullopt;
};

MpiBootstrap bootstrap_of(const InitCall& call, const Patience& patience) {
  const InitOptions& options = call.options;
  if (call.communicator) {
    if (!options.ranks.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  "hora::init: InitOptions has ranks, and there is a communicator: give one of "
                  "them");
    }
    return MpiBootstrap(Communicator::of(*call.communicator, patience), patience);
  }
  return MpiBootstrap(options.ranks.empty() ? Communicator::world(patience)
                                            : Communicator::of(options.ranks, patience),
                      patience);
}

/// Every rank's process, by rank; without its pid where that is one of another pid namespace.
std::vector<ProcessIdentity> all_processes(Bootstrap& ranks) {
  const ProcessIdentity own = identity_of_process(ranks.rank());
  const std::string space = pid_namespace();
  std::vector<ProcessIdentity> all;
  for (const std::string& text :
       gather_texts(ranks, std::to_string(own.pid) + " " + space + " " + own.host)) {
    std::istringstream said(text);
    ProcessIdentity& one = all.emplace_back();
    one.rank = static_cast<int>(all.size()) - 1;
    std::string other_space;
    said >> one.pid >> other_space >> one.host;
    if (other_space != space) one.pid = 0;
  }
  return all;
}

/// The transports of one rank: windows inside the node, MPI between nodes. Construction is
/// collective and throws the same error on every rank where that is possible.
class MpiTransport final : public Transport {
 public:
  MpiTransport(const InitCall& call, const ProcessSettings& of_process,
               std::unique_ptr<OnlyRuntime> only, std::shared_ptr<FlightRecorder> flight)
      : only_(std::move(only)),
        flight_(std::move(flight)),
        environment_(call.argc, call.argv),
        bootstrap_(bootstrap_of(call, patience_of(of_process.assignments))),
        settings_(agree_on_settings(*bootstrap_, of_process)) {
    set_log_level(settings_.log_level);
    agree_on_sets(*bootstrap_, call.options.process_sets);
    if (settings_.malloc_tuning && !keep_large_allocations()) {
      log().info("this C library keeps its own thresholds for large allocations");
    }
    node_ = discover_nodes(*bootstrap_, settings_.ranks_per_node);
    if (const int ranks = settings_.ranks_per_memory_node; ranks > 0) {
      node_.memory_nodes = virtual_memory_nodes(node_.topology, ranks);
    }
    start_record();
    processes_ = all_processes(*bootstrap_);
    gpu_ = make_gpu(*bootstrap_, node_, settings_);
    make_world();
    report();
    start_timeline();
    if (flight_->guard() > 0) relay_.emplace(static_cast<pid_t>(flight_->guard()));
  }

  EngineParts parts() override {
    return {.world = world_->parts(),
            .rank = bootstrap_->rank(),
            .settings = settings_,
            .has_core = node_.host_size <= cores_of_host() && cores_of_process() > 1,
            .threads_supported = environment_.thread_multiple(),
            .device = gpu_ ? &gpu_->port() : nullptr,
            .device_heap = gpu_ ? &gpu_->heap() : nullptr,
            .device_index = gpu_ ? gpu_->index() : 0,
            .sets = &*sets_,
            .trace = Tracer(&trace_),
            .flight = flight_.get(),
            .processes = processes_,
            .abort = [] { abort_job(1); }};
  }

  void disconnect() override {
    relay_.reset();
    if (gpu_) gpu_->disconnect();
    world_->disconnect();
    bootstrap_.reset();
    environment_.release();
    only_.reset();
  }

  void abort_at_exit(std::chrono::milliseconds grace, std::function<void()> first) override {
    abandon_job(grace, std::move(first));
  }

 private:
  /// As every other set is made, but that this rank waits for it.
  void make_world() {
    sets_.emplace(
        SetContext{settings_, node_, bootstrap_->communicator(), Tracer(&trace_), gpu_.get()});
    world_ = sets_->begin(plan_of_world());
    // No rank may write to a control block before its owner has seen it mapped by all.
    bootstrap_->barrier();
    while (!world_->poll()) std::this_thread::yield();
  }
  /// The leader's first window holds the control block; every rank of the node has that window
  /// mapped.
  SetPlan plan_of_world() {
    const Topology& topology = node_.topology;
    const int node = topology.node_of(bootstrap_->rank());
    Location place;
    if (topology.local_rank_of(bootstrap_->rank()) == 0) {
      const ControlBlockShape shape = control_block_shape(topology, node, settings_, true);
      place = node_.memory->allocate(NodeControlBlock::bytes(shape)).location;
    }
    const auto places = all_gather_values(*bootstrap_, place);
    const int leader = topology.ranks_of_node[static_cast<std::size_t>(node)].front();
    return {.id = kWorld,
            .topology = topology,
            .control_block = places[static_cast<std::size_t>(leader)]};
  }
  void report() {
    const Topology& topology = node_.topology;
    const int rank = bootstrap_->rank();
    const auto& of_node = topology.ranks_of_node[static_cast<std::size_t>(topology.node_of(rank))];
    const auto local_size = static_cast<int>(of_node.size());
    if (rank == of_node.front()) {
      const auto advice = binding_advice(cores_of_process(), cores_of_host(), node_.host_size);
      if (advice) log().warn("rank {}: {}", rank, *advice);
    }
    if (rank != 0) return;
    log().info(
        "{} ranks on {} nodes of {} to {} ranks; memory nodes of sums: {}; kernels: {}; between "
        "nodes: {}, in messages of {} bytes at most",
        topology.size(), topology.nodes(), topology.smallest_node(), local_size,
        MemoryNodes::of(topology, node_.memory_nodes).count, kernel_instruction_set(),
        allreduce_algorithm(settings_.cross_algorithm).name,
        message_limit(settings_.message_size, node_.over_sockets));
  }
  /// Who this rank is, and HORA_RECORD_DIRECTORY. Collective: a rank that cannot write there is
  /// an error on all.
  void start_record() {
    const Topology& topology = node_.topology;
    const int rank = bootstrap_->rank();
    flight_->writer().identify({.hora_version = std::string(version()),
                                .host = host_name(),
                                .rank = rank,
                                .size = topology.size(),
                                .node = topology.node_of(rank),
                                .local_rank = topology.local_rank_of(rank)});
    if (settings_.record_directory.empty()) return;
    obey_setting("", [&] { flight_->write_failures_to(settings_.record_directory); });
  }
  /// An error of one rank's is the same on all. Collective.
  template <class F>
  void obey_setting(const std::string& name, const F& obey) {
    std::string problem;
    try {
      obey();
    } catch (const Error& error) {
      problem = name + error.what();
    }
    throw_together(*bootstrap_, problem, ErrorCode::invalid_setting);
  }
  /// HORA_TIMELINE. Collective: a rank whose file cannot be written is an error on all.
  void start_timeline() {
    if (settings_.timeline.empty()) return;
    obey_setting("HORA_TIMELINE: ", [&] {
      trace_.start(timeline_file(settings_.timeline, bootstrap_->rank()),
                   identity_of(node_.topology, bootstrap_->rank()));
    });
  }

  // In the order in which they are needed; destroyed in reverse.
  std::unique_ptr<OnlyRuntime> only_;
  std::shared_ptr<FlightRecorder> flight_;
  MpiEnvironment environment_;
  std::optional<MpiBootstrap> bootstrap_;
  Settings settings_;
  NodeDiscovery node_;
  std::vector<ProcessIdentity> processes_;  ///< by rank
  Trace trace_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<MpiSets> sets_;
  std::unique_ptr<SetTransport> world_;
  std::optional<SignalRelay> relay_;
};

Context start_runtime(const InitCall& call, std::unique_ptr<OnlyRuntime> only,
                      std::shared_ptr<FlightRecorder> flight) {
  const InitOptions& options = call.options;
  Context context = Access::context(
      Engine::make(std::make_unique<MpiTransport>(
                       call, settings_of_process(assignments_of_process(), options.settings),
                       std::move(only), std::move(flight)),
                   options.engine_thread));
  try {
    for (const auto& ranks : options.process_sets) add_process_set(context, ranks);
  } catch (...) {
    // The same on every rank. The destructor would end the job, for an exception is in flight.
    context.shutdown();
    throw;
  }
  return context;
}

Context start(const InitCall& call) {
  auto only = std::make_unique<OnlyRuntime>();
  const auto flight = std::make_shared<FlightRecorder>(std::getenv(kRecordVariable));
  try {
    return start_runtime(call, std::move(only), flight);
  } catch (const Error& error) {
    flight->failed(error);
    throw;
  } catch (const std::exception& error) {
    flight->failed(error.what());
    throw;
  }
}

}  // namespace

std::string_view version() noexcept {
  return HORA_VERSION;
}
BuildInfo build_info() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  mpi_check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  const GpuBuild gpu = gpu_build();
  return {.mpi = whole.substr(0, whole.find('\n')), .cuda = gpu.cuda, .nccl = gpu.nccl};
}

Context init(const InitOptions& options) {
  return start({.options = options});
}
Context init(int& argc, char**& argv, const InitOptions& options) {
  return start({.options = options, .argc = &argc, .argv = &argv});
}
bool is_initialized() noexcept {
  return OnlyRuntime::running.load();
}
Context detail::init_on(MPI_Comm communicator, const InitOptions& options) {
  return start({.options = options, .communicator = communicator});
}

}  // namespace hora
