#include <algorithm>
#include <array>
#include <optional>

#include "core/bounded_reader.h"
#include "core/engine/engine.h"
#include "core/log.h"
#include "ops/context/gpu.h"
#include "ops/context/gpu/agreement.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/loaded_libraries.h"
#include "ops/nccl/device_cross.h"
#include "ops/nccl/functions.h"
#include "ops/nccl/nccl_set.h"
#include "ops/nccl/slice_staging.h"

namespace hora {
namespace {

/// Ranks of a node start within this time of one another, and NCCL finds its links.
constexpr auto kConnectLimit = std::chrono::minutes(2);
/// Two for each collective under way.
constexpr std::size_t kEvents = 128;
constexpr auto kCloseLimit = std::chrono::seconds(30);

/// The same on all ranks of the node.
ncclUniqueId agreed_id(const NcclFunctions& nccl, const Communicator& world,
                       const std::vector<int>& ranks_of_node) {
  ncclUniqueId id{};
  if (world.rank() == ranks_of_node.front()) {
    nccl_check(nccl, nccl.get_unique_id(&id), "ncclGetUniqueId");
  }
  const auto ids = world.all_gather(std::as_bytes(std::span(&id, 1)));
  const int first = ranks_of_node.front();
  return BoundedReader(ids[static_cast<std::size_t>(first)], {.what = "NCCL's id", .rank = first})
      .take<ncclUniqueId>();
}

NcclGroupOptions group_options(const PipelineOptions& pipeline, int device, int local_size) {
  return {.device = device,
          .local_rank = pipeline.local_rank,
          .local_size = local_size,
          .slices = pipeline.slices,
          .slots = pipeline.nodes > 1 ? pipeline.slots : 0,
          .chunk_bytes = pipeline.chunk_bytes,
          .trace = pipeline.trace};
}

GpuGroups groups_of(NcclSet& set, const PipelineOptions& pipeline) {
  return {.local = &set.group(), .exchange = pipeline.nodes > 1 ? nullptr : &set.exchange()};
}

class CudaGpuSet final : public GpuSet {
 public:
  CudaGpuSet(NcclContext& context, const PipelineOptions& pipeline, LaunchTicketLock ticket_lock,
             int members)
      : set_(context, group_options(pipeline, context.device, members), ticket_lock,
             NcclSet::Connects::when_used),
        groups_(groups_of(set_, pipeline)) {}
  GpuGroups groups() override { return groups_; }
  void disconnect() override { set_.disconnect(); }

 private:
  NcclSet set_;
  GpuGroups groups_;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu(const PipelineOptions& pipeline, const NcclGroupOptions& options,
          const NodeControlBlock& control_block, const Settings& settings, PointToPoint* messages)
      : node_ticket_lock_(control_block.launch_ticket_lock()),
        context_(cuda_runtime(), nccl_library(), options.device, kEvents, settings.device_timeout),
        world_(context_, options, ticket_lock(control_block), NcclSet::Connects::at_start),
        groups_(groups_of(world_, pipeline)) {
    if (!options.device_staging || !messages) return;
    cross_.emplace(cuda_runtime(), context_.events, options, *messages, cross_options(settings));
    groups_.cross = &cross_->group();
  }

  /// Before memory is freed, which waits for what may never come to an end. Nothing after
  /// disconnect().
  ~CudaGpu() override { context_.communicators.abort(); }

  void connect(const ncclUniqueId& id) {
    world_.connect(id);
    world_.communicator().wait_ready(std::chrono::steady_clock::now() + kConnectLimit);
  }

  int index() const override { return context_.device; }
  DevicePort& port() override { return context_.port; }
  DeviceHeap& heap() override { return context_.heap; }
  GpuGroups groups() override { return groups_; }
  std::unique_ptr<GpuSet> make_set(const PipelineOptions& pipeline,
                                   const NodeControlBlock& control_block) override {
    return std::make_unique<CudaGpuSet>(context_, pipeline, ticket_lock(control_block),
                                        control_block.local_size());
  }
  void disconnect() override {
    context_.communicators.close(std::chrono::steady_clock::now() + kCloseLimit);
  }

 private:
  LaunchTicketLock ticket_lock(const NodeControlBlock& control_block) const {
    return {node_ticket_lock_, control_block.launch_ticket_lock(), control_block.local_rank() == 0,
            control_block.local_size()};
  }

  LaunchTicketLockMemory& node_ticket_lock_;
  NcclContext context_;
  NcclSet world_;
  GpuGroups groups_;
  std::optional<DeviceCross> cross_;
};

int visible_devices() {
  int count = 0;
  const cudaError_t result = cuda_runtime().get_device_count(&count);
  if (result == cudaSuccess) return count;
  // No driver, or no device: a machine without GPUs, where a build with CUDA works on the CPU.
  cuda_runtime().get_last_error();
  return 0;
}

/// What this rank works with, for the log.
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
  const auto dotted = [](std::initializer_list<int> numbers) {
    std::string text;
    for (const int number : numbers) text += (text.empty() ? "" : ".") + std::to_string(number);
    return text;
  };
  return {.cuda = dotted({CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100}),
          .nccl = dotted({NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH})};
}

std::unique_ptr<Gpu> make_gpu(const Communicator& world, const NodeDiscovery& node,
                              const PipelineOptions& pipeline,
                              const NodeControlBlock& control_block, const Settings& settings,
                              PointToPoint* messages) {
  const int devices = settings.cuda ? visible_devices() : 0;
  int fewest = devices;
  const auto counts = world.all_gather(std::as_bytes(std::span(&devices, 1)));
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    BoundedReader reader(counts[rank],
                         {.what = "the number of GPUs", .rank = static_cast<int>(rank)});
    fewest = std::min(fewest, reader.take<int>());
  }
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
  check_gpus(cuda_runtime(), world, node.topology, index);
  const auto& ranks = node.topology.ranks_of_node[static_cast<std::size_t>(pipeline.node)];
  NcclGroupOptions options = group_options(pipeline, index, control_block.local_size());
  options.device_staging = agree_on_device_staging(world, settings, pipeline.nodes);
  auto gpu = std::make_unique<CudaGpu>(pipeline, options, control_block, settings, messages);
  gpu->connect(agreed_id(nccl_library(), world, ranks));
  return gpu;
}

}  // namespace hora
