/// Sums of float32 on GPUs in nccl-tests' columns (https://github.com/NVIDIA/nccl-tests), by
///
///   hora_buffer  hora::allreduce_async in a hora::Buffer, which is registered with NCCL
///   hora         the same in memory of cudaMalloc
///   nccl         ncclAllReduce in place, on a communicator of its own
///   memcpy       one cudaMemcpyAsync of as many bytes on this GPU: what one pass over memory takes
///
/// `time` is that of one of 20 operations that are given to a stream one after another, from a
/// barrier until the slowest rank's GPU has done them; blocks of the contenders alternate. `algbw`
/// is a rank's bytes over it, `busbw` algbw times 2(n-1)/n: 0 on one rank. `wrong` are elements
/// that differ from the sum, of an operation of its own. Run under mpirun; 77: no GPU.
#include <cuda_runtime_api.h>
#include <hora/hora.h>
#include <nccl.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/harness/comparison.h"
#include "bench/harness/ranks.h"
#include "bench/harness/timed_loop.h"

namespace {

using bench::cuda;
using Clock = std::chrono::steady_clock;

constexpr int kOperations = 20;  // of a block
constexpr int kBlocks = 10;

void nccl(ncclResult_t result) {
  if (result != ncclSuccess) throw std::runtime_error(ncclGetErrorString(result));
}

using DeviceMemory = std::unique_ptr<float, bench::FreeDevice>;

DeviceMemory allocate(std::size_t count) {
  void* data = nullptr;
  cuda(cudaMalloc(&data, count * sizeof(float)));
  return DeviceMemory(static_cast<float*>(data));
}

/// A stream, and a communicator of NCCL over all ranks. Constructor and destructor are collective.
class NcclPeer {
 public:
  explicit NcclPeer(const bench::Ranks& ranks) {
    ncclUniqueId id{};
    std::vector<std::int64_t> words(sizeof(id) / sizeof(std::int64_t));
    if (ranks.rank() == 0) {
      nccl(ncclGetUniqueId(&id));
      std::memcpy(words.data(), &id, sizeof(id));
    }
    words = ranks.broadcast(words);
    std::memcpy(&id, words.data(), sizeof(id));
    cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    nccl(ncclCommInitRank(&comm_, ranks.size(), id, ranks.rank()));
  }
  ~NcclPeer() {
    static_cast<void>(ncclCommDestroy(comm_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;

  cudaStream_t stream() const { return stream_; }
  void sum(float* data, std::size_t count) const {
    nccl(ncclAllReduce(data, data, count, ncclFloat, ncclSum, comm_, stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

struct Contender {
  const char* name;
  float* data;
  std::function<void()> enqueue;
  bool sums = true;
  bench::Blocks seconds = {};
  std::int64_t wrong = 0;
};

std::int64_t count_wrong(const bench::Ranks& ranks, const Contender& contender, std::size_t count,
                         cudaStream_t stream) {
  std::vector<float> host(count);
  bench::write_values(host.data(), count, ranks.rank(), /*round=*/1);
  cuda(cudaMemcpyAsync(contender.data, host.data(), count * sizeof(float), cudaMemcpyHostToDevice,
                       stream));
  contender.enqueue();
  cuda(cudaStreamSynchronize(stream));
  cuda(cudaMemcpy(host.data(), contender.data, count * sizeof(float), cudaMemcpyDeviceToHost));
  return ranks.sum(bench::count_wrong_sums(host.data(), count, ranks.size(), /*round=*/1));
}

double seconds_of_block(const bench::Ranks& ranks, const Contender& contender,
                        cudaStream_t stream) {
  contender.enqueue();
  cuda(cudaStreamSynchronize(stream));
  ranks.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < kOperations; ++i) contender.enqueue();
  cuda(cudaStreamSynchronize(stream));
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  return ranks.max(seconds.count()) / kOperations;
}

void print(const bench::Ranks& ranks, const Contender& contender, std::size_t count) {
  if (ranks.rank() != 0) return;
  const double bytes = static_cast<double>(count * sizeof(float));
  const double seconds = bench::quantile(bench::flatten(contender.seconds), 0.5);
  const double algbw = bytes / seconds * 1e-9;
  const double busbw = algbw * 2 * (ranks.size() - 1) / ranks.size();
  const char* const operation = contender.sums ? "sum" : "none";
  std::printf("%-12s %12.0f %12zu %8s %6s %10.2f %8.2f %8.2f %7lld\n", contender.name, bytes, count,
              "float", operation, seconds * 1e6, algbw, busbw,
              static_cast<long long>(contender.wrong));
  std::printf(
      R"({"contender": "%s", "ranks": %d, "bytes": %.0f, "time_us": %.3f, "algbw": %.3f, "busbw": %.3f, "wrong": %lld})"
      "\n",
      contender.name, ranks.size(), bytes, seconds * 1e6, algbw, busbw,
      static_cast<long long>(contender.wrong));
  std::fflush(stdout);
}

std::int64_t measure(const hora::Context& world, const bench::Ranks& ranks, const NcclPeer& peer,
                     std::int64_t megabytes) {
  const auto bytes = static_cast<std::size_t>(megabytes) << 20U;
  const std::size_t count = bytes / sizeof(float);
  const hora::Buffer buffer(world, bytes, world.device());
  const DeviceMemory plain = allocate(count);
  const DeviceMemory target = allocate(count);
  const auto hora_sum = [&](void* data) {
    hora::allreduce_async(world,
                          {data,
                           hora::DataType::float32,
                           {static_cast<std::int64_t>(count)},
                           world.device(),
                           peer.stream()},
                          {.name = "x", .op = hora::ReduceOp::sum})
        .wait();
  };
  auto* const in_buffer = reinterpret_cast<float*>(buffer.data());
  std::vector<Contender> contenders = {
      {"hora_buffer", in_buffer, [&] { hora_sum(in_buffer); }},
      {"hora", plain.get(), [&] { hora_sum(plain.get()); }},
      {"nccl", plain.get(), [&] { peer.sum(plain.get(), count); }},
      {"memcpy", plain.get(),
       [&] {
         cuda(cudaMemcpyAsync(target.get(), plain.get(), bytes, cudaMemcpyDeviceToDevice,
                              peer.stream()));
       },
       false}};
  std::int64_t wrong = 0;
  for (Contender& contender : contenders) {
    if (contender.sums) contender.wrong = count_wrong(ranks, contender, count, peer.stream());
    wrong += contender.wrong;
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (Contender& contender : contenders) {
      contender.seconds.push_back({seconds_of_block(ranks, contender, peer.stream())});
    }
  }
  for (const Contender& contender : contenders) print(ranks, contender, count);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (!bench::has_gpu()) return bench::kNoGpu;
  std::vector<std::int64_t> megabytes = {1, 4, 25, 100, 256};
  CLI::App app("Times sums on GPUs beside NCCL's own");
  app.add_option("--megabytes", megabytes, "sizes, MiB")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const hora::Context world = hora::init();
  cuda(cudaSetDevice(world.device().index));
  const bench::Ranks ranks;
  const NcclPeer peer(ranks);
  if (ranks.rank() == 0) {
    std::printf("%-12s %12s %12s %8s %6s %10s %8s %8s %7s\n", "# contender", "bytes", "count",
                "type", "redop", "time(us)", "algbw", "busbw", "wrong");
  }
  std::int64_t wrong = 0;
  for (const std::int64_t size : megabytes) wrong += measure(world, ranks, peer, size);
  return wrong == 0 ? 0 : 1;
}
