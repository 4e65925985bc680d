// hora::init: creates and owns all parts of a rank.
#include <hora/build_info.h>
#include <hora/context.h>
#include <hora/error.h>
#include <hora/mpi.h>
#include <hora/process_set.h>
#include <unistd.h>

#include <algorithm>
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

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/engine/engine.h"
#include "core/engine/interfaces.h"
#include "core/flight/flight_recorder.h"
#include "core/flight/signal_relay.h"
#include "core/trace/trace.h"
#include "ops/context/agreement.h"
#include "ops/context/gpu.h"
#include "ops/context/memory_node_trial.h"
#include "ops/context/mpi_sets.h"
#include "ops/context/node_discovery.h"
#include "ops/context/process_tuning.h"
#include "ops/cross/cross_group.h"
#include "ops/local/kernels.h"
#include "ops/mpi/communicator.h"
#include "ops/mpi/environment.h"
#include "ops/mpi/mpi_point_to_point.h"

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
    node_.memory_nodes =
        memory_nodes_of_sums(*bootstrap_, node_.topology, *node_.memory,
                             std::move(node_.memory_nodes), settings_.ranks_per_memory_node);
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

  [[noreturn]] void abort() noexcept override { abort_job(1); }
  void abort_at_exit(std::chrono::milliseconds grace, std::function<void()> first) override {
    abandon_job(grace, std::move(first));
  }

 private:
  void make_world();
  SetPlan plan_of_world();
  void report();
  void start_record();
  void start_timeline();

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

/// As every other set is made, but that this rank waits for it.
void MpiTransport::make_world() {
  const SetContext context{.rank = bootstrap_->rank(),
                           .settings = &settings_,
                           .memory = node_.memory.get(),
                           .node_memory = node_.smallest_memory,
                           .over_sockets = node_.over_sockets,
                           .memory_nodes = node_.memory_nodes,
                           .trace = Tracer(&trace_),
                           .gpu = gpu_.get()};
  sets_.emplace(context, node_.topology, bootstrap_->communicator());
  world_ = sets_->begin(plan_of_world());
  // No rank may write to a control block before its owner has seen it mapped by all.
  bootstrap_->barrier();
  while (!world_->poll()) std::this_thread::yield();
}

/// The leader's first window holds the control block; every rank of the node has that window
/// mapped.
SetPlan MpiTransport::plan_of_world() {
  const Topology& topology = node_.topology;
  const int node = topology.node_of(bootstrap_->rank());
  Location place;
  if (topology.local_rank_of(bootstrap_->rank()) == 0) {
    const ControlBlockShape shape = control_block_shape(topology, node, settings_, true);
    place = node_.memory->allocate(NodeControlBlock::bytes(shape)).location;
  }
  const auto places = bootstrap_->all_gather(std::as_bytes(std::span(&place, 1)));
  const int leader = topology.ranks_of_node[static_cast<std::size_t>(node)].front();
  BoundedReader reader(places[static_cast<std::size_t>(leader)],
                       {"the place of a node's control_block", leader});
  return {.id = kWorld, .topology = topology, .control_block = reader.take<Location>()};
}

void MpiTransport::report() {
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

/// Who this rank is, and HORA_RECORD_DIRECTORY. Collective: a rank that cannot write there is an
/// error on all.
void MpiTransport::start_record() {
  const Topology& topology = node_.topology;
  const int rank = bootstrap_->rank();
  flight_->writer().identify({.hora_version = build_info().version,
                              .host = host_name(),
                              .rank = rank,
                              .size = topology.size(),
                              .node = topology.node_of(rank),
                              .local_rank = topology.local_rank_of(rank)});
  if (settings_.record_directory.empty()) return;
  std::string problem;
  try {
    flight_->write_failures_to(settings_.record_directory);
  } catch (const Error& error) {
    problem = error.what();
  }
  throw_together(*bootstrap_, problem, ErrorCode::invalid_setting);
}

/// HORA_TIMELINE. Collective: a rank whose file cannot be written is an error on all.
void MpiTransport::start_timeline() {
  if (settings_.timeline.empty()) return;
  std::string problem;
  try {
    trace_.start(timeline_file(settings_.timeline, bootstrap_->rank()),
                 identity_of(node_.topology, bootstrap_->rank()));
  } catch (const Error& error) {
    problem = std::string("HORA_TIMELINE: ") + error.what();
  }
  throw_together(*bootstrap_, problem, ErrorCode::invalid_setting);
}

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
