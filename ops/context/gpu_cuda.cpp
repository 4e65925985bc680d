#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include "core/base/checked.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/engine/engine.h"
#include "ops/context/gpu.h"
#include "ops/cuda/functions.h"
#include "ops/nccl/functions.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal {
namespace {

/// Ranks of a communicator start within this time of one another, and NCCL finds its links.
constexpr auto kConnectLimit = std::chrono::minutes(2);
/// Two for each collective under way.
constexpr std::size_t kEvents = 128;
constexpr auto kCloseLimit = std::chrono::seconds(30);

/// The id of the communicator that `first` is the first rank of: the same on all its ranks.
/// Collective over the world.
ncclUniqueId agreed_id(const NcclFunctions& nccl, Bootstrap& world, int first) {
  ncclUniqueId id{};
  if (world.rank() == first) nccl_check(nccl, nccl.get_unique_id(&id), "ncclGetUniqueId");
  return all_gather_values(world, id)[static_cast<std::size_t>(first)];
}

/// `spans_nodes`: of all ranks of the set.
NcclGroupOptions group_options(const PipelineOptions& pipeline, const Settings& settings,
                               int device, int local_size, bool spans_nodes) {
  NcclGroupOptions options{
      .device = device,
      .local_rank = pipeline.local_rank,
      .local_size = local_size,
      .slices = pipeline.slices,
      .slots = pipeline.nodes > 1 && !spans_nodes ? pipeline.slots : 0,
      .chunk_bytes = device_chunk_limit(settings.chunk_size, pipeline.nodes, pipeline.slices),
      .most_ctas = settings.nccl_ctas,
      .trace = pipeline.trace};
  if (spans_nodes) {
    const Topology& set = pipeline.topology;
    const auto& of_node = set.ranks_of_node[static_cast<std::size_t>(pipeline.node)];
    options.over_nodes = {.rank = of_node[static_cast<std::size_t>(pipeline.local_rank)],
                          .ranks = set.size()};
  }
  return options;
}

/// How the world's GPUs are connected between nodes.
struct NodeLinks {
  bool spans_nodes = false;     ///< by one communicator
  bool device_staging = false;  ///< by MPI, from GPU memory
};

class CudaGpuSet final : public GpuSet {
 public:
  CudaGpuSet(NcclContext& context, const NcclGroupOptions& options, bool exchanges,
             LaunchTicketLock ticket_lock, NcclSet::Connects connects)
      : context_(context),
        options_(options),
        is_world_(connects == NcclSet::Connects::at_start),
        set_(context, options, ticket_lock, connects) {
    groups_.local = &set_.group();
    groups_.spans_nodes = options.over_nodes.has_value();
    if (exchanges) groups_.exchange = &set_.exchange();
  }
  /// Aborts before the world's memory is freed: freeing waits for collectives of any set, which may
  /// never complete.
  ~CudaGpuSet() override {
    if (is_world_) context_.port.end();
  }

  /// Slices stay in GPU memory between nodes.
  void stage_on_device(PointToPoint& messages, const Settings& settings) {
    cross_.emplace(context_.cuda, context_.events, options_, messages, cross_options(settings));
    groups_.cross = &cross_->group();
  }
  void connect(const ncclUniqueId& id) {
    set_.connect(id);
    set_.communicator().wait_ready(std::chrono::steady_clock::now() + kConnectLimit);
  }

  DeviceGroups groups() override { return groups_; }
  void disconnect() override { set_.disconnect(); }

 private:
  NcclContext& context_;
  NcclGroupOptions options_;
  bool is_world_;
  NcclSet set_;
  std::optional<DeviceCross> cross_;
  DeviceGroups groups_;
};

class CudaGpu final : public Gpu {
 public:
  /// `id`: of this rank's communicator in the world.
  CudaGpu(int device, const ncclUniqueId& id, NodeLinks links, const Settings& settings)
      : id_(id),
        links_(links),
        settings_(settings),
        context_(cuda_runtime(), nccl_library(), device, kEvents, settings.device_timeout) {}

  /// Nothing after disconnect().
  ~CudaGpu() override { context_.port.end(); }

  int index() const override { return context_.device; }
  DevicePort& port() override { return context_.port; }
  DeviceHeap& heap() override { return context_.heap; }
  std::unique_ptr<GpuSet> make_set(ProcessSet set, const PipelineOptions& pipeline,
                                   const NodeControlBlock& control_block,
                                   PointToPoint* messages) override {
    const bool is_world = set == kWorld;
    if (is_world) node_ticket_lock_ = &control_block.launch_ticket_lock();
    const LaunchTicketLock ticket_lock(*node_ticket_lock_, control_block.launch_ticket_lock(),
                                       control_block.local_rank() == 0, control_block.local_size());
    const bool spans_nodes = is_world && links_.spans_nodes;
    NcclGroupOptions options = group_options(pipeline, settings_, context_.device,
                                             control_block.local_size(), spans_nodes);
    options.device_staging = is_world && links_.device_staging;
    options.windows = is_world && pipeline.nodes == 1 && settings_.nccl_windows;
    auto made = std::make_unique<CudaGpuSet>(
        context_, options, pipeline.nodes == 1 || spans_nodes, ticket_lock,
        is_world ? NcclSet::Connects::at_start : NcclSet::Connects::when_used);
    if (options.device_staging && messages) made->stage_on_device(*messages, settings_);
    if (is_world) made->connect(id_);
    return made;
  }
  void disconnect() override {
    context_.port.close(std::chrono::steady_clock::now() + kCloseLimit);
  }

 private:
  ncclUniqueId id_;
  NodeLinks links_;
  const Settings& settings_;
  LaunchTicketLockMemory* node_ticket_lock_ = nullptr;  ///< the world's, whose turns all sets take
  NcclContext context_;
};

int visible_devices() {
  int count = 0;
  const cudaError_t result = cuda_runtime().get_device_count(&count);
  if (result == cudaSuccess) return count;
  // No driver, or no device: a machine without GPUs, where a build with CUDA works on the CPU.
  cuda_runtime().get_last_error();
  return 0;
}

/// Logs this rank's device.
void report(int rank, int index) {
  const LoadedLibraries libraries = check_one_copy();
  int nccl = 0;
  nccl_check(nccl_library(), nccl_library().get_version(&nccl), "ncclGetVersion");
  std::array<char, 32> bus{};
  cuda_check(cuda_runtime(),
             cuda_runtime().device_get_pci_bus_id(bus.data(), static_cast<int>(bus.size()), index),
             "cudaDeviceGetPCIBusId");
  log().info("rank {}: cuda:{} ({}), CUDA runtime {}, NCCL {}.{}.{} {}", rank, index, bus.data(),
             libraries.cuda_runtime, nccl / 10000, nccl / 100 % 100, nccl % 100, libraries.nccl);
}

}  // namespace

GpuBuild gpu_build() {
  return {.cuda = fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100),
          .nccl = fmt::format("{}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)};
}

std::unique_ptr<Gpu> make_gpu(Bootstrap& world, const NodeDiscovery& node,
                              const Settings& settings) {
  const int devices = settings.cuda ? visible_devices() : 0;
  const int fewest = std::ranges::min(all_gather_values(world, devices));
  if (fewest == 0) {
    if (devices > 0) {
      log().warn("rank {} sees {} GPUs, but another rank sees none: hora works on the CPU alone",
                 world.rank(), devices);
    }
    return nullptr;
  }
  const int index = node.host_rank % devices;
  if (node.host_size > devices && node.host_rank == 0) {
    log().warn("{} ranks share {} GPUs on the host of rank {}", node.host_size, devices,
               world.rank());
  }
  cuda_check(cuda_runtime(), cuda_runtime().set_device(index), "cudaSetDevice");
  report(world.rank(), index);
  const Topology& topology = node.topology;
  const auto gpus = check_gpus(cuda_runtime(), world, topology, index);
  NodeLinks links;
  links.spans_nodes = agree_on_gpu_network(world, network_of(std::getenv, active_rdma_ports()),
                                           settings.gpu_network, topology.nodes(), gpus);
  if (!links.spans_nodes) {
    links.device_staging =
        agree_on_device_staging(world, mpi_cuda_support(), settings, topology.nodes());
  }
  const auto own_node = static_cast<std::size_t>(topology.node_of(world.rank()));
  const int first = links.spans_nodes ? 0 : topology.ranks_of_node[own_node].front();
  return std::make_unique<CudaGpu>(index, agreed_id(nccl_library(), world, first), links, settings);
}

}  // namespace hora::internal
