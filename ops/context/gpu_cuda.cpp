#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "core/engine/engine.h"
#include "core/log.h"
#include "ops/context/gpu.h"
#include "ops/context/gpu/agreement.h"
#include "ops/cuda/check.h"
#include "ops/cuda/loaded_libraries.h"
#include "ops/cuda/stream_heap.h"
#include "ops/nccl/check.h"
#include "ops/nccl/device_cross.h"
#include "ops/nccl/nccl_exchange.h"
#include "ops/nccl/nccl_group.h"

namespace hora {
namespace {

/// Ranks of a node start within this time of one another, and NCCL finds its links.
constexpr auto kConnectLimit = std::chrono::minutes(2);
/// Two for each collective under way.
constexpr std::size_t kEvents = 128;
constexpr auto kCloseLimit = std::chrono::seconds(30);

NcclCommunicator connect(const NcclFunctions& nccl, const Communicator& world,
                         const std::vector<int>& ranks_of_node) {
  ncclUniqueId id{};
  if (world.rank() == ranks_of_node.front()) {
    nccl_check(nccl, nccl.get_unique_id(&id), "ncclGetUniqueId");
  }
  const auto ids = world.all_gather(std::as_bytes(std::span(&id, 1)));
  std::memcpy(&id, ids[static_cast<std::size_t>(ranks_of_node.front())].data(), sizeof id);
  const auto mine = std::find(ranks_of_node.begin(), ranks_of_node.end(), world.rank());
  NcclCommunicator communicator(nccl, id, static_cast<int>(ranks_of_node.size()),
                                static_cast<int>(mine - ranks_of_node.begin()));
  communicator.wait_ready(std::chrono::steady_clock::now() + kConnectLimit);
  return communicator;
}

class CudaGpu final : public Gpu {
 public:
  CudaGpu(const Communicator& world, const std::vector<int>& ranks_of_node, int index,
          const NcclGroupOptions& options, const Settings& settings, PointToPoint* messages)
      : index_(index),
        communicator_(connect(nccl_library(), world, ranks_of_node)),
        events_(cuda_runtime(), kEvents),
        watch_(cuda_runtime(), index, communicator_, events_, settings.device_timeout, now),
        port_(cuda_runtime(), nccl_library(), index, communicator_, events_, watch_),
        launches_(cuda_runtime(), nccl_library(), index, communicator_, watch_),
        heap_(cuda_runtime(), index, events_, launches_.stream()),
        group_(options, launches_) {
    if (options.slots == 0) {
      exchange_.emplace(options.local_rank, options.local_size, launches_, heap_);
    }
    if (!options.device_staging || !messages) return;
    cross_.emplace(cuda_runtime(), events_, options, *messages, cross_options(settings));
  }

  /// Before memory is freed, which waits for what may never come to an end. Nothing after
  /// disconnect().
  ~CudaGpu() override { communicator_.abort(); }

  int index() const override { return index_; }
  DevicePort& port() override { return port_; }
  DeviceHeap& heap() override { return heap_; }
  GpuGroups groups() override {
    return {.local = &group_,
            .exchange = exchange_ ? &*exchange_ : nullptr,
            .cross = cross_ ? &cross_->group() : nullptr};
  }
  void disconnect() override {
    communicator_.close(std::chrono::steady_clock::now() + kCloseLimit);
  }

 private:
  int index_;
  NcclCommunicator communicator_;
  EventPool events_;
  DeviceWatch watch_;
  NcclDevice port_;
  NcclLaunches launches_;
  StreamHeap heap_;
  NcclGroup group_;
  std::optional<NcclExchange> exchange_;
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

std::unique_ptr<Gpu> make_gpu(const Communicator& world, const NodeDiscovery& node,
                              const PipelineOptions& pipeline, const Settings& settings,
                              PointToPoint* messages) {
  const int devices = settings.cuda ? visible_devices() : 0;
  int fewest = devices;
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(&devices, 1)))) {
    int theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    fewest = std::min(fewest, theirs);
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
  const NcclGroupOptions options{
      .device = index,
      .local_rank = pipeline.local_rank,
      .local_size = static_cast<int>(ranks.size()),
      .slices = pipeline.slices,
      .slots = pipeline.nodes > 1 ? pipeline.slots : 0,
      .chunk_bytes = settings.chunk_size,
      .device_staging = agree_on_device_staging(world, settings, pipeline.nodes),
      .trace = pipeline.trace};
  return std::make_unique<CudaGpu>(world, ranks, index, options, settings, messages);
}

}  // namespace hora
