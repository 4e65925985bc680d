#include "examples/vision/train/device.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <hora/torch.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "examples/vision/train/data_parallel.h"

namespace vision {

torch::Device choose_device(const hora::Context& world, const TrainingOptions& options) {
  const torch::Device own = hora::local_device(world);
  if (options.device == DeviceChoice::cuda && !own.is_cuda()) {
    throw std::runtime_error(
        "--device cuda: this job has no GPU on every rank, or hora was built without CUDA "
        "(preset cuda)");
  }
  const torch::Device device = options.device == DeviceChoice::cpu ? torch::kCPU : own;
  if (options.distribution.mode == Mode::data_parallel) {
    if (options.device == DeviceChoice::cpu) {
      throw std::runtime_error("--mode data-parallel needs GPUs, and --device is cpu");
    }
    return all_gpus().front();
  }
  return device;
}

void share_cores(const hora::Context& world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const bool virtual_nodes = world.settings().ranks_per_node > 0;
  const int ranks_here = virtual_nodes ? world.size() : world.local_size();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / ranks_here));
}

void choose_algorithms(bool deterministic) {
  at::globalContext().setDeterministicCuDNN(deterministic);
  at::globalContext().setBenchmarkCuDNN(!deterministic);
}

}  // namespace vision
