/// Packs and unpacks ResNet-50's 161 gradients, as a bucket does, beside other ways of doing it:
///
///   hora       the copy kernel: all tensors in one launch
///   memcpy     one cudaMemcpyAsync a tensor
///   foreach    LibTorch's _foreach_copy_
///   flat       the same bytes as one cudaMemcpyAsync, which is what the others are shares of
///
/// Blocks of the contenders alternate; a time is that of 20 operations between two events, and
/// bandwidth counts bytes read and bytes written. A line of JSON follows each. 77: no GPU.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "bench/allreduce_perf/workload.h"
#include "bench/harness/comparison.h"
#include "ops/cuda/functions.h"

namespace {

constexpr int kBlocks = 20;
constexpr int kOperations = 20;  // of a block
/// Elements: places in a bucket are aligned to 64 bytes of float32.
constexpr std::int64_t kAlignment = 16;

void cuda(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

struct Contender {
  const char* name;
  std::function<void()> operate;
  bool is_copy;  ///< its result is checked
  bench::Blocks seconds = {};
};

/// Separate tensors of ResNet-50's sizes, and their places in one bucket.
struct Gradients {
  std::vector<at::Tensor> separate;
  std::vector<at::Tensor> places;
  at::Tensor bucket;
  std::int64_t elements = 0;

  Gradients(at::ScalarType separate_type, at::ScalarType bucket_type) {
    const auto counts = bench::resnet50_gradients();
    std::int64_t end = 0;
    std::vector<std::int64_t> first;
    for (const std::size_t count : counts) {
      first.push_back(end);
      end += (static_cast<std::int64_t>(count) + kAlignment - 1) / kAlignment * kAlignment;
    }
    bucket = torch::zeros({end}, torch::dtype(bucket_type).device(torch::kCUDA));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto count = static_cast<std::int64_t>(counts[i]);
      separate.push_back(torch::randn({count}, torch::kCUDA).to(separate_type));
      places.push_back(bucket.narrow(0, first[i], count));
      elements += count;
    }
  }
};

hora::DataType data_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == torch::kHalf ? hora::DataType::float16 : hora::DataType::float32;
}

void batched_copy(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  std::vector<hora::internal::CopyPiece> pieces;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    pieces.push_back({sources[i].data_ptr(), targets[i].data_ptr(), sources[i].numel()});
  }
  const hora::internal::BatchedCopy copy{pieces, data_type(sources[0]), data_type(targets[0]), 1.0};
  cuda(hora::internal::cuda_runtime().batched_copy(copy,
                                                   c10::cuda::getCurrentCUDAStream().stream()));
}

void copy_each(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    cuda(cudaMemcpyAsync(targets[i].data_ptr(), sources[i].data_ptr(), sources[i].nbytes(),
                         cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream().stream()));
  }
}

double time_block(const std::function<void()>& operate) {
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cuda(cudaEventCreate(&begin));
  cuda(cudaEventCreate(&end));
  operate();
  cuda(cudaEventRecord(begin, stream));
  for (int i = 0; i < kOperations; ++i) operate();
  cuda(cudaEventRecord(end, stream));
  cuda(cudaEventSynchronize(end));
  float milliseconds = 0.0F;
  cuda(cudaEventElapsedTime(&milliseconds, begin, end));
  cuda(cudaEventDestroy(begin));
  cuda(cudaEventDestroy(end));
  return static_cast<double>(milliseconds) * 1e-3 / kOperations;
}

bool equal(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!torch::equal(targets[i], sources[i].to(targets[i].scalar_type()))) return false;
  }
  return true;
}

/// Prints a line a contender; false where a copy went wrong.
bool measure(const char* what, const std::vector<at::Tensor>& targets,
             const std::vector<at::Tensor>& sources, std::int64_t elements) {
  const double bytes = static_cast<double>(elements) *
                       static_cast<double>(targets[0].element_size() + sources[0].element_size());
  // Half of the traffic is read, the other half written.
  const auto flat_bytes = static_cast<std::int64_t>(bytes / 2.0);
  const auto flat_source =
      torch::zeros({flat_bytes}, torch::dtype(torch::kByte).device(torch::kCUDA));
  const auto flat_target = torch::zeros_like(flat_source);
  std::vector<Contender> contenders = {
      {"flat", [&] { copy_each({flat_target}, {flat_source}); }, false},
      {"hora", [&] { batched_copy(targets, sources); }, true},
      {"foreach", [&] { at::_foreach_copy_(targets, sources); }, true}};
  if (targets[0].scalar_type() == sources[0].scalar_type()) {
    contenders.push_back({"memcpy", [&] { copy_each(targets, sources); }, true});
  }
  bool right = true;
  for (const Contender& contender : contenders) {
    for (const at::Tensor& target : targets) target.zero_();
    contender.operate();
    right &= !contender.is_copy || equal(targets, sources);
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (Contender& contender : contenders) {
      contender.seconds.push_back({time_block(contender.operate)});
    }
  }
  for (const Contender& contender : contenders) {
    const double seconds = bench::quantile(bench::flatten(contender.seconds), 0.5);
    const double share = 1.0 / bench::ratio_of_blocks(contender.seconds, contenders[0].seconds);
    const double rate = bytes / seconds * 1e-9;
    std::printf("%-28s %-8s %8.1f us %8.1f GB/s, share of flat %.3f%s\n", what, contender.name,
                seconds * 1e6, rate, share, right ? "" : "  WRONG");
    std::printf(
        R"({"what": "%s", "contender": "%s", "time_us": %.3f, "gb_per_s": %.1f, "share_of_flat": %.4f})"
        "\n",
        what, contender.name, seconds * 1e6, rate, share);
  }
  std::fflush(stdout);
  return right;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 77;
  }
  const c10::InferenceMode no_gradients;
  bool right = true;
  const Gradients same(torch::kFloat, torch::kFloat);
  right &= measure("pack float32", same.places, same.separate, same.elements);
  right &= measure("unpack float32", same.separate, same.places, same.elements);
  const Gradients half(torch::kHalf, torch::kHalf);
  right &= measure("pack float16", half.places, half.separate, half.elements);
  const Gradients mixed(torch::kFloat, torch::kHalf);
  right &= measure("pack float32 to float16", mixed.places, mixed.separate, mixed.elements);
  right &= measure("unpack float16 to float32", mixed.separate, mixed.places, mixed.elements);
  return right ? 0 : 1;
}
