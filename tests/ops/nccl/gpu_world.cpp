#include "tests/ops/nccl/gpu_world.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "ops/cuda/check.h"
#include "ops/cuda/stream_heap.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/nccl/device_cross.h"
#include "ops/nccl/nccl_exchange.h"

namespace hora::test {

struct GpuWorld::Rank {
  Rank(FakeGpu& gpu, const ncclUniqueId& id, const NcclGroupOptions& options,
       const Settings& settings)
      : communicator(gpu.nccl(), id, options.local_size, options.local_rank),
        events(gpu.cuda(), 16),  // as in ops/context: two for each collective under way
        watch(gpu.cuda(), options.device, communicator, events, settings.device_timeout, now),
        port(gpu.cuda(), gpu.nccl(), options.device, communicator, events, watch),
        launches(gpu.cuda(), gpu.nccl(), options.device, communicator, watch),
        heap(gpu.cuda(), options.device, events, launches.stream()),
        group(options, launches),
        exchange(options.local_rank, options.local_size, launches, heap) {}
  /// As the owner in ops/context: freeing memory waits for what may never come to an end.
  ~Rank() { communicator.abort(); }
  NcclCommunicator communicator;
  EventPool events;
  DeviceWatch watch;
  NcclDevice port;
  NcclLaunches launches;
  StreamHeap heap;
  NcclGroup group;
  NcclExchange exchange;
  std::optional<DeviceCross> cross;
};

GpuWorld::GpuWorld(const GpuWorldOptions& options)
    : nodes_(static_cast<int>(options.node_sizes.size())) {
  const int slices = *std::min_element(options.node_sizes.begin(), options.node_sizes.end());
  const PipelineOptions pipeline;
  for (const int size : options.node_sizes) {
    ncclUniqueId id{};
    for (int local = 0; local < size; ++local) {
      FakeGpuOptions gpu = options.gpu;
      gpu.seed += gpus_.size();
      gpus_.push_back(std::make_unique<FakeGpu>(nccl_, gpu));
      if (local == 0) gpus_.back()->nccl().get_unique_id(&id);
      const Tracer trace =
          options.trace ? options.trace(static_cast<int>(ranks_.size())) : Tracer();
      const NcclGroupOptions group{.local_rank = local,
                                   .local_size = size,
                                   .slices = slices,
                                   .slots = options.node_sizes.size() > 1 ? pipeline.slots : 0,
                                   .chunk_bytes = options.settings.chunk_size,
                                   .device_staging = options.device_staging,
                                   .trace = trace};
      ranks_.push_back(std::make_unique<Rank>(*gpus_.back(), id, group, options.settings));
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (auto& rank : ranks_) rank->communicator.wait_ready(deadline);
  if (options.device_staging) connect_nodes(options);
  world_ = std::make_unique<ThreadWorld>(ThreadWorldOptions{
      .node_sizes = options.node_sizes,
      .settings = options.settings,
      .engine_threads = options.engine_threads,
      .device =
          [this, single_node = options.node_sizes.size() == 1](int rank, int, int) {
            Rank& own = *ranks_[static_cast<std::size_t>(rank)];
            return RankDevice{&own.port, &own.heap, &own.group,
                              single_node ? &own.exchange : nullptr,
                              own.cross ? &own.cross->group() : nullptr};
          },
      .trace = options.trace});
}

void GpuWorld::connect_nodes(const GpuWorldOptions& options) {
  const int slices = *std::min_element(options.node_sizes.begin(), options.node_sizes.end());
  const NcclGroupOptions group{.slices = slices,
                               .slots = PipelineOptions{}.slots,
                               .chunk_bytes = options.settings.chunk_size};
  for (int slice = 0; slice < slices; ++slice) {
    std::vector<std::size_t> members;
    std::size_t first = 0;
    for (const int size : options.node_sizes) {
      members.push_back(first + static_cast<std::size_t>(slice));
      first += static_cast<std::size_t>(size);
    }
    const auto inspect = [this, members](int member, std::span<const std::byte> memory) {
      const FakeGpu& gpu = *gpus_[members[static_cast<std::size_t>(member)]];
      ++messages_;
      if (!gpu.owns(memory.data(), memory.size())) ++misplaced_;
    };
    networks_.push_back(std::make_unique<ThreadNetwork>(
        static_cast<int>(members.size()), options.gpu.seed + networks_.size(), inspect));
    for (std::size_t node = 0; node < members.size(); ++node) {
      Rank& rank = *ranks_[members[node]];
      rank.cross.emplace(gpus_[members[node]]->cuda(), rank.events, group,
                         networks_.back()->member(static_cast<int>(node)),
                         cross_options(options.settings));
    }
  }
}

GpuWorld::~GpuWorld() {
  end();
}

void GpuWorld::end() {
  world_.reset();
  ranks_.clear();
}

DeviceHeap& GpuWorld::heap(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->heap;
}

DevicePort& GpuWorld::port(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->port;
}

void GpuWorld::on_all_ranks(const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] { body(rank); });
  }
}

DeviceTensor::DeviceTensor(FakeGpu& gpu, DataType type, std::vector<std::byte> bytes)
    : gpu_(gpu),
      type_(type),
      stream_(gpu.cuda(), 0),
      device_(gpu.cuda(), bytes.size()),
      host_(gpu.cuda(), bytes.size()) {
  fill(bytes);
}

void DeviceTensor::fill(const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  std::memcpy(host_.data(), bytes.data(), bytes.size());
  cuda_check(gpu_.cuda(),
             gpu_.cuda().memcpy_async(device_.data(), host_.data(), bytes.size(),
                                      cudaMemcpyHostToDevice, stream_.get()),
             "cudaMemcpyAsync");
}

Signature DeviceTensor::signature(OperationKind kind, ReduceOp op, int root) const {
  Signature result;
  result.kind = kind;
  result.type = type_;
  result.op = op;
  result.device = DeviceKind::cuda;
  result.root = root;
  result.shape = {static_cast<std::int64_t>(device_.bytes() / size_of(type_))};
  return result;
}

std::vector<std::byte> DeviceTensor::read() {
  std::vector<std::byte> bytes(device_.bytes());
  if (bytes.empty()) return bytes;
  const CudaFunctions& cuda = gpu_.cuda();
  cuda_check(cuda,
             cuda.memcpy_async(host_.data(), device_.data(), bytes.size(), cudaMemcpyDeviceToHost,
                               stream_.get()),
             "cudaMemcpyAsync");
  cuda_check(cuda, cuda.stream_synchronize(stream_.get()), "cudaStreamSynchronize");
  std::memcpy(bytes.data(), host_.data(), bytes.size());
  return bytes;
}

}  // namespace hora::test
