/// Averages of large tensors on GPUs across nodes, beside what the copies to pinned host memory
/// alone would take: the same bytes down and up at the same time, by two plain cudaMemcpyAsync. The
/// averages go over pinned memory, too; with HORA_CUDA_AWARE_MPI=on then also from GPU memory
/// straight into MPI, in the same run. Run with two virtual nodes: HORA_RANKS_PER_NODE=1 mpirun
/// -np 2. 77: no GPU.
///
/// `GB/s` are a tensor's bytes over the slowest rank's time, each operation begun on an idle GPU.
/// A line of JSON follows each.
#include <cuda_runtime_api.h>
#include <hora/hora.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/harness/ranks.h"
#include "bench/harness/timed_loop.h"

namespace {

using bench::cuda;

struct FreePinned {
  void operator()(void* data) const noexcept { static_cast<void>(cudaFreeHost(data)); }
};

/// Two streams and memory for one copy down and one up.
class PinnedCopies {
 public:
  explicit PinnedCopies(std::size_t bytes) : bytes_(bytes) {
    for (int i = 0; i < 2; ++i) {
      void* data = nullptr;
      cuda(cudaMalloc(&data, bytes));
      device_[i].reset(data);
      cuda(cudaMallocHost(&data, bytes));
      host_[i].reset(data);
      cuda(cudaStreamCreateWithFlags(&stream_[i], cudaStreamNonBlocking));
    }
  }
  ~PinnedCopies() {
    for (const cudaStream_t stream : stream_) static_cast<void>(cudaStreamDestroy(stream));
  }
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;

  void run() {
    cuda(cudaMemcpyAsync(host_[0].get(), device_[0].get(), bytes_, cudaMemcpyDeviceToHost,
                         stream_[0]));
    cuda(cudaMemcpyAsync(device_[1].get(), host_[1].get(), bytes_, cudaMemcpyHostToDevice,
                         stream_[1]));
    for (const cudaStream_t stream : stream_) cuda(cudaStreamSynchronize(stream));
  }

 private:
  std::size_t bytes_;
  std::unique_ptr<void, bench::FreeDevice> device_[2];
  std::unique_ptr<void, FreePinned> host_[2];
  cudaStream_t stream_[2] = {};
};

/// Sums of `1 + rank`, in memory of hora's.
bench::Contender allreduce(const hora::Context& world, const hora::Buffer& buffer,
                           std::vector<float>& host) {
  const auto count = static_cast<std::int64_t>(host.size());
  const auto fill = [&world, &host](std::uint32_t round) {
    return static_cast<float>(1 + world.rank() + static_cast<int>(round % 16));
  };
  return {.write =
              [&, fill](std::uint32_t round) {
                std::fill(host.begin(), host.end(), fill(round));
                cuda(cudaMemcpy(buffer.data(), host.data(), buffer.size(), cudaMemcpyHostToDevice));
              },
          .operate =
              [&world, &buffer, count] {
                hora::allreduce_async(
                    world,
                    {buffer.data(), hora::DataType::float32, {count}, world.device(), nullptr},
                    {.name = "x", .op = hora::ReduceOp::sum})
                    .synchronize();
              },
          .count_wrong =
              [&](std::uint32_t round) {
                cuda(cudaMemcpy(host.data(), buffer.data(), buffer.size(), cudaMemcpyDeviceToHost));
                const int size = world.size();
                const auto expected =
                    static_cast<float>(size * (size + 1) / 2 + size * static_cast<int>(round % 16));
                return static_cast<std::int64_t>(std::count_if(
                    host.begin(), host.end(), [&](float value) { return value != expected; }));
              }};
}

std::int64_t measure(const hora::Context& world, const char* way,
                     const std::vector<std::int64_t>& megabytes, double seconds) {
  const bench::Ranks ranks;
  std::int64_t wrong = 0;
  for (const std::int64_t size : megabytes) {
    const auto bytes = static_cast<std::size_t>(size) << 20;
    const hora::Buffer buffer(world, bytes, world.device());
    std::vector<float> host(bytes / sizeof(float));
    PinnedCopies copies(bytes);
    const std::vector<bench::Contender> contenders = {
        allreduce(world, buffer, host),
        {.write = [](std::uint32_t) {},
         .operate = [&copies] { copies.run(); },
         .count_wrong = [](std::uint32_t) { return std::int64_t{0}; }}};
    const auto timings = bench::time_alternately(ranks, contenders, {.min_seconds = seconds});
    wrong += timings[0].wrong;
    if (world.rank() != 0) continue;
    const auto rate = [&](const bench::Timing& timing) {
      return static_cast<double>(bytes) / 1e9 / bench::quantile(bench::flatten(timing.blocks), 0.5);
    };
    const double share = 1.0 / bench::ratio_of_blocks(timings[0].blocks, timings[1].blocks);
    std::printf(
        "%lld MiB over %s: allreduce %.2f GB/s, pinned copies down and up %.2f GB/s, share "
        "%.3f%s\n",
        static_cast<long long>(size), way, rate(timings[0]), rate(timings[1]), share,
        timings[0].wrong > 0 ? ", WRONG" : "");
    std::printf(
        R"({"over": "%s", "mebibytes": %lld, "gb_per_s": %.3f, "copies_gb_per_s": %.3f, "share": %.4f, "wrong": %lld})"
        "\n",
        way, static_cast<long long>(size), rate(timings[0]), rate(timings[1]), share,
        static_cast<long long>(timings[0].wrong));
    std::fflush(stdout);
  }
  return wrong;
}

/// A context of its own, for settings are read once.
std::int64_t measure_with(const char* cuda_aware_mpi, const char* way,
                          const std::vector<std::int64_t>& megabytes, double seconds) {
  setenv("HORA_CUDA_AWARE_MPI", cuda_aware_mpi, 1);
  hora::Context world = hora::init();
  const std::int64_t wrong = measure(world, way, megabytes, seconds);
  world.shutdown();
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (!bench::has_gpu()) return bench::kNoGpu;
  std::vector<std::int64_t> megabytes = {4, 25, 100, 256};
  double seconds = 2.0;
  CLI::App app("Times averages of GPU memory between nodes");
  app.add_option("--megabytes", megabytes, "sizes, MiB")->capture_default_str();
  app.add_option("--seconds", seconds, "of each size and contender")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const char* const wanted = std::getenv("HORA_CUDA_AWARE_MPI");
  const bool straight = wanted && std::string_view(wanted) == "on";
  std::int64_t wrong = measure_with("off", "pinned memory", megabytes, seconds);
  if (straight) wrong += measure_with("on", "GPU memory", megabytes, seconds);
  return wrong == 0 ? 0 : 1;
}
