// Ranks as threads of this process, each with a fake GPU that tensors lie on. The environment says
// how they lie: TEST_NODES=2_1, the ranks of each node (2 without it), and between nodes
// TEST_STAGING=device for messages straight from GPU memory, or nccl for one communicator over all
// ranks; in one node TEST_STAGING=windows for buffers in NCCL's windows.
#include <hora/settings.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string_view>

#include "core/api/internals.h"
#include "core/engine/engine.h"
#include "ops/cuda/functions.h"
#include "ops/cuda/stream.h"
#include "tests/conformance/ranks.h"
#include "tests/support/fake_gpu/gpu_world.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

std::vector<int> node_sizes() {
  const char* const text = std::getenv("TEST_NODES");
  std::istringstream sizes(text == nullptr ? "2" : text);
  std::vector<int> result;
  for (std::string size; std::getline(sizes, size, '_');) result.push_back(std::stoi(size));
  return result;
}

GpuWorldOptions world_options(const Ranks::Variables& variables) {
  std::vector<SettingAssignment> assignments;
  for (const auto& [variable, value] : variables) assignments.push_back({variable, value});
  const char* const variable = std::getenv("TEST_STAGING");
  const std::string_view staging = variable ? variable : "";
  GpuWorldOptions options{.node_sizes = node_sizes(),
                          .settings = parse_settings(assignments),
                          .engines = false,
                          .device_staging = staging == "device",
                          .by_nccl = staging == "nccl"};
  if (variables.empty()) options.settings.chunk_size = 8192;
  if (staging == "windows") options.settings.nccl_windows = true;
  options.settings.device_timeout = std::chrono::seconds(60);
  options.gpu.seed = seed();
  options.gpu.longest_delay = std::chrono::microseconds(variables.empty() ? 20 : 100);
  return options;
}

class FakeCopy final : public DeviceCopy {
 public:
  FakeCopy(const CudaFunctions& cuda, void* stream, const std::byte* values, std::size_t bytes)
      : cuda_(cuda), stream_(stream), bytes_(bytes), memory_(cuda, bytes), pinned_(cuda, bytes) {
    if (bytes_ == 0) return;
    std::memcpy(pinned_.data(), values, bytes);
    copy(memory_.data(), pinned_.data(), cudaMemcpyHostToDevice);
  }
  std::byte* data() const override { return memory_.data(); }
  void* stream() const override { return stream_; }
  std::vector<std::byte> read() override {
    if (bytes_ == 0) return {};
    copy(pinned_.data(), memory_.data(), cudaMemcpyDeviceToHost);
    cuda_check(cuda_, cuda_.stream_synchronize(static_cast<cudaStream_t>(stream_)),
               "cudaStreamSynchronize");
    return {pinned_.data(), pinned_.data() + bytes_};
  }

 private:
  void copy(std::byte* to, const std::byte* from, cudaMemcpyKind kind) {
    cuda_check(cuda_,
               cuda_.memcpy_async(to, from, bytes_, kind, static_cast<cudaStream_t>(stream_)),
               "cudaMemcpyAsync");
  }
  const CudaFunctions& cuda_;
  void* stream_;
  std::size_t bytes_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
};

/// With streams that outlive all results, which are ready in the order of their inputs' streams.
class DeviceOfGpu final : public DeviceOfRank {
 public:
  DeviceOfGpu(FakeGpu& gpu, DeviceHeap& heap) : gpu_(gpu), cuda_(gpu.cuda()), heap_(heap) {
    gpu.choose();
    for (CudaStream& stream : streams_) stream = CudaStream(cuda_, 0);
  }
  std::unique_ptr<DeviceCopy> copy_of(const std::byte* values, std::size_t bytes) override {
    void* const stream = streams_[next_++ % streams_.size()].get();
    gpu_.choose();
    return std::make_unique<FakeCopy>(cuda_, stream, values, bytes);
  }
  void write(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) override {
    heap_.to_device(to, from, bytes, stream);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) override {
    heap_.to_host(to, from, bytes, stream);
  }

 private:
  FakeGpu& gpu_;
  const CudaFunctions& cuda_;
  DeviceHeap& heap_;
  std::array<CudaStream, 5> streams_;
  std::atomic<std::size_t> next_{0};
};

/// One rank of a world that outlives it.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(GpuWorld& world, int rank) : world_(world), rank_(rank) {}
  EngineParts parts() override { return world_.parts(rank_); }
  void disconnect() override {}
  void abort_at_exit(std::chrono::milliseconds, std::function<void()>) override { std::abort(); }

 private:
  GpuWorld& world_;
  int rank_;
};

class FakeGpuRanks final : public Ranks {
 public:
  explicit FakeGpuRanks(const Variables& settings)
      : options_(world_options(settings)),
        world_(std::make_unique<GpuWorld>(options_)),
        meeting_(world_->size()) {
    for (int rank = 0; rank < world_->size(); ++rank) {
      devices_.push_back(std::make_unique<DeviceOfGpu>(world_->gpu(rank), world_->heap(rank)));
    }
  }
  int count() const override { return world_->size(); }
  Context start(int index, const InitOptions& options) override {
    return Access::context(
        Engine::make(std::make_unique<ThreadTransport>(*world_, index), options.engine_thread));
  }
  DeviceOfRank* device(int index) override {
    return devices_[static_cast<std::size_t>(index)].get();
  }
  void meet() override { meeting_.arrive_and_wait(); }
  std::string complaints() override {
    std::string text;
    for (const std::string& complaint : world_->complaints()) text += complaint + "\n";
    if (world_->misplaced_messages() > 0) text += "messages from or to another GPU's memory\n";
    devices_.clear();
    world_->end();
    for (const int rank : world_->ranks_with_leftovers()) {
      text += "something is left on the GPU of rank " + std::to_string(rank) + "\n";
    }
    return text;
  }

 private:
  GpuWorldOptions options_;
  std::unique_ptr<GpuWorld> world_;
  std::barrier<> meeting_;
  std::vector<std::unique_ptr<DeviceOfGpu>> devices_;
};

}  // namespace

std::pair<int, int> Ranks::place() {
  const auto sizes = node_sizes();
  return {0, std::accumulate(sizes.begin(), sizes.end(), 0)};
}

std::unique_ptr<Ranks> Ranks::make(const Variables& settings) {
  return std::make_unique<FakeGpuRanks>(settings);
}

}  // namespace hora::internal::test
