// Averages on GPUs for ever, until the last rank is killed inside a collective. The others must be
// free of it: each prints how long it was in hora after the kill, and leaves with exit code 3.
// Under mpirun; tests/gpu.sh says how, and sets HORA_DEVICE_TIMEOUT. 77: no GPU.
#include <cuda_runtime_api.h>
#include <hora/hora.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

namespace {

constexpr std::int64_t kCount = 16 << 20;
constexpr auto kQuiet = std::chrono::seconds(2);  // until the kill

/// One line at once, so that lines of several ranks do not mix; out before the process ends.
void say(int rank, const std::string& text) {
  std::printf("%s\n", ("rank " + std::to_string(rank) + ": " + text).c_str());
  std::fflush(stdout);
}

/// Between its input and the end of the collective, at any moment: a thread that nothing waits for.
void kill_later() {
  std::thread([] {
    std::this_thread::sleep_for(kQuiet);
    std::raise(SIGKILL);
  }).detach();
}

void average_for_ever(const hora::Context& world) {
  void* data = nullptr;
  if (cudaMalloc(&data, kCount * sizeof(float)) != cudaSuccess) {
    say(world.rank(), "no memory on the GPU");
    std::_Exit(1);
  }
  hora::TensorView tensor = hora::view(static_cast<float*>(data), kCount);
  tensor.device = world.device();
  auto last = std::chrono::steady_clock::now();
  try {
    for (;;) {
      hora::allreduce_async(world, tensor, {.name = "x", .op = hora::ReduceOp::average})
          .synchronize();
      last = std::chrono::steady_clock::now();
    }
  } catch (const hora::Error& error) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - last);
    say(world.rank(), "free after " + std::to_string(waited.count()) + " ms: " + error.what());
    // No shutdown: it would wait for a rank that is gone.
    std::_Exit(3);
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU here\n");
    return 77;
  }
  try {
    const hora::Context world = hora::init();
    if (world.size() < 2) {
      say(world.rank(), "needs two ranks");
      return 2;
    }
    say(world.rank(), "process " + std::to_string(getpid()));
    if (world.rank() == world.size() - 1) kill_later();
    average_for_ever(world);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
  }
  return 1;
}
