#include "tests/support/fake_gpu/gpu_world.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <numeric>
#include <optional>
#include <thread>

#include "ops/cuda/functions.h"
#include "ops/hierarchy/pipeline.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal::test {

struct GpuWorld::Rank {
  Rank(FakeGpu& gpu, const NcclGroupOptions& of_world, LaunchTicketLockMemory& memory,
       const Settings& settings)
      : options(of_world),
        node_ticket_lock(memory),
        // As in ops/context: two events for each collective under way.
        context(gpu.cuda(), gpu.nccl(), options.device, 16, settings.device_timeout),
        world(context, options, ticket_lock(memory, options.local_rank, options.local_size),
              NcclSet::Connects::at_start) {}
  /// As the owner in ops/context: freeing memory waits for collectives that may never complete.
  ~Rank() { context.port.end(); }
  LaunchTicketLock ticket_lock(LaunchTicketLockMemory& of_set, int local_rank,
                               int local_size) const {
    return {node_ticket_lock, of_set, local_rank == 0, local_size};
  }
  const NcclGroupOptions options;
  LaunchTicketLockMemory& node_ticket_lock;
  NcclContext context;
  NcclSet world;
  std::list<NcclSet> others;
  std::optional<DeviceCross> cross;
};

NcclGroupOptions GpuWorld::group_options(int rank, int local_rank, int local_size, int nodes,
                                         int slices) const {
  const std::size_t chunk_bytes = device_chunk_limit(options_.settings.chunk_size, nodes, slices);
  return {.device = gpus_[static_cast<std::size_t>(rank)]->index(),
          .local_rank = local_rank,
          .local_size = local_size,
          .slices = slices,
          .slots = nodes > 1 ? PipelineOptions{}.slots : 0,
          .chunk_bytes = chunk_bytes,
          .trace = options_.trace ? options_.trace(rank) : Tracer()};
}

GpuWorld::GpuWorld(const GpuWorldOptions& options) : options_(options) {
  const int slices = *std::ranges::min_element(options.node_sizes);
  const auto node_count = static_cast<int>(options.node_sizes.size());
  const int ranks = std::accumulate(options.node_sizes.begin(), options.node_sizes.end(), 0);
  ncclUniqueId id{};
  for (const int size : options.node_sizes) {
    ticket_lock_.push_back(std::make_unique<LaunchTicketLockMemory>());
    for (int local = 0; local < size; ++local) {
      const auto rank = static_cast<int>(ranks_.size());
      FakeGpuOptions gpu = options.gpu;
      gpu.seed += gpus_.size();
      gpus_.push_back(std::make_unique<FakeGpu>(nccl_, gpu));
      const bool begins = local == 0 && (rank == 0 || !options.by_nccl);
      if (begins) gpus_.back()->nccl().get_unique_id(&id);
      const DeviceGuard device(gpus_.back()->cuda(), gpus_.back()->index());
      NcclGroupOptions group = group_options(rank, local, size, node_count, slices);
      group.device_staging = options.device_staging;
      group.windows = node_count == 1 && options.settings.nccl_windows;
      if (node_count > 1 && options.by_nccl) {
        group.slots = 0;
        group.over_nodes = {.rank = rank, .ranks = ranks};
      }
      ranks_.push_back(
          std::make_unique<Rank>(*gpus_.back(), group, *ticket_lock_.back(), options.settings));
      ranks_.back()->world.connect(id);
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (auto& rank : ranks_) rank->world.communicator().wait_ready(deadline);
  if (options.device_staging) connect_nodes(slices);
  world_ = std::make_unique<ThreadWorld>(ThreadWorldOptions{
      .node_sizes = options.node_sizes,
      .settings = options.settings,
      .engines = options.engines,
      .device =
          [this](int rank, int, int) {
            Rank& own = *ranks_[static_cast<std::size_t>(rank)];
            const bool exchanges = nodes() == 1 || spans_nodes();
            return RankDevice{.port = &own.context.port,
                              .heap = &own.context.heap,
                              .group = &own.world.group(),
                              .exchange = exchanges ? &own.world.exchange() : nullptr,
                              .cross = own.cross ? &own.cross->group() : nullptr,
                              .spans_nodes = spans_nodes()};
          },
      .set_device =
          [this](int rank, const SetPlan& plan, const NodeControlBlock& control_block) {
            return join_set(rank, plan, control_block);
          },
      .trace = options.trace});
}

RankDevice GpuWorld::join_set(int rank, const SetPlan& plan,
                              const NodeControlBlock& control_block) {
  Rank& own = *ranks_[static_cast<std::size_t>(rank)];
  const bool single_node = plan.topology.nodes() == 1;
  const NcclGroupOptions group =
      group_options(rank, control_block.local_rank(), control_block.local_size(),
                    plan.topology.nodes(), plan.topology.smallest_node());
  NcclSet& set = own.others.emplace_back(
      own.context, group,
      own.ticket_lock(control_block.launch_ticket_lock(), control_block.local_rank(),
                      control_block.local_size()),
      NcclSet::Connects::when_used);
  return {.group = &set.group(),
          .exchange = single_node ? &set.exchange() : nullptr,
          .disconnect = [&set] { set.disconnect(); }};
}

void GpuWorld::connect_nodes(int slices) {
  for (int slice = 0; slice < slices; ++slice) {
    std::vector<std::size_t> members;
    std::size_t first = 0;
    for (const int size : options_.node_sizes) {
      members.push_back(first + static_cast<std::size_t>(slice));
      first += static_cast<std::size_t>(size);
    }
    const auto inspect = [this, members](int member, std::span<const std::byte> memory) {
      const FakeGpu& gpu = *gpus_[members[static_cast<std::size_t>(member)]];
      ++messages_;
      if (!gpu.owns(memory.data(), memory.size())) ++misplaced_;
    };
    networks_.push_back(std::make_unique<MessageNetwork>(
        static_cast<int>(members.size()), options_.gpu.seed + networks_.size(),
        MessageNetwork::Delivery::by_tests, inspect));
    for (std::size_t node = 0; node < members.size(); ++node) {
      Rank& rank = *ranks_[members[node]];
      const CudaFunctions& cuda = gpus_[members[node]]->cuda();
      const DeviceGuard device(cuda, rank.options.device);
      rank.cross.emplace(cuda, rank.context.events, rank.options,
                         networks_.back()->member(static_cast<int>(node)),
                         cross_options(options_.settings));
    }
  }
}

GpuWorld::~GpuWorld() {
  end();
}

std::vector<std::string> GpuWorld::complaints() const {
  std::vector<std::string> complaints = nccl_.errors();
  for (const auto& gpu : gpus_) {
    const auto violations = gpu->violations();
    complaints.insert(complaints.end(), violations.begin(), violations.end());
    for (const int index : gpu->contexts()) {
      if (index == gpu->index()) continue;
      complaints.push_back("rank " + std::to_string(gpu->index()) + " has made a context on GPU " +
                           std::to_string(index));
    }
  }
  return complaints;
}

void GpuWorld::end() {
  world_.reset();
  ranks_.clear();
}

std::vector<int> GpuWorld::ranks_with_leftovers() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
    while (gpus_[rank]->live() != LiveHandles{} && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (gpus_[rank]->live() != LiveHandles{}) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

DeviceHeap& GpuWorld::heap(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->context.heap;
}

DevicePort& GpuWorld::port(int rank) {
  return ranks_[static_cast<std::size_t>(rank)]->context.port;
}

void GpuWorld::on_all_ranks(const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size(); ++rank) threads.emplace_back([&, rank] { body(rank); });
}

DeviceTensor::DeviceTensor(FakeGpu& gpu, DataType type, std::vector<std::byte> bytes)
    : gpu_(gpu.choose()),  // as a program does before anything else on its thread
      type_(type),
      stream_(gpu.cuda(), 0),
      device_(gpu.cuda(), bytes.size()),
      host_(gpu.cuda(), bytes.size()) {
  fill(bytes);
}

void DeviceTensor::fill(const std::vector<std::byte>& bytes) {
  if (bytes.empty()) return;
  const DeviceGuard device(gpu_.cuda(), gpu_.index());
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
  const DeviceGuard device(cuda, gpu_.index());
  cuda_check(cuda,
             cuda.memcpy_async(host_.data(), device_.data(), bytes.size(), cudaMemcpyDeviceToHost,
                               stream_.get()),
             "cudaMemcpyAsync");
  cuda_check(cuda, cuda.stream_synchronize(stream_.get()), "cudaStreamSynchronize");
  std::memcpy(bytes.data(), host_.data(), bytes.size());
  return bytes;
}

PendingExchange submit_exchange(GpuWorld& world, int rank, OperationKind kind,
                                const std::vector<std::int64_t>& rows, const DeviceTensor& input) {
  Request request{name_of(kind), input.signature(kind, ReduceOp::sum)};
  const bool sums = kind == OperationKind::reduce_scatter;
  const std::int64_t columns = kRowBytes / sizeof(float);
  if (sums) request.signature.prescale = request.signature.postscale = 0.5;
  request.signature.shape = {sums ? rows.front() : kAnyExtent, columns};
  request.data = input.data();
  request.stream = input.stream();
  request.rows = rows;
  request.bytes = static_cast<std::size_t>(std::reduce(rows.begin(), rows.end())) * kRowBytes;
  ResultForm form;
  form.view = {nullptr, DataType::float32, {0, columns}, {DeviceKind::cuda, 0}, input.stream()};
  const auto result = std::make_shared<DeviceResult>(world.heap(rank), form);
  request.result = result;
  return {world.engine(rank).submit(std::move(request)), result};
}

}  // namespace hora::internal::test
