// Averages on GPUs, until the last rank is killed inside a collective. The others must not hang:
// each prints how long it has waited for its error, and leaves with exit code 3. Under mpirun;
// tests/gpu.sh says how, and sets HORA_DEVICE_TIMEOUT. 77: no GPU.
#include <cuda_runtime_api.h>
#include <hora/hora.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

constexpr std::int64_t kCount = 16 << 20;
constexpr int kRounds = 10;  // before the last one
/// Longer than ranks take to agree and to start the collective.
constexpr auto kUntilTheKill = std::chrono::milliseconds(500);

/// One line at once, so that lines of several ranks do not mix; out before the process ends.
void say(int rank, const std::string& text) {
  std::printf("%s\n", ("rank " + std::to_string(rank) + ": " + text).c_str());
  std::fflush(stdout);
}

void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

/// Work that `stream` is given later does not run for a minute.
void hold(cudaStream_t stream) {
  check(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::minutes(1)); }, nullptr));
}

/// Its values never arrive: the collective has begun on the others and cannot end. Not after
/// wait(): across nodes that one needs the values.
[[noreturn]] void die_inside(const hora::Context& world, const hora::TensorView& tensor) {
  hold(static_cast<cudaStream_t>(tensor.stream));
  const hora::Handle handle = hora::allreduce_async(world, tensor, {.name = "x"});
  std::this_thread::sleep_for(kUntilTheKill);
  say(world.rank(), "killed");
  std::raise(SIGKILL);
  std::abort();
}

void run(const hora::Context& world) {
  void* data = nullptr;
  cudaStream_t stream = nullptr;
  check(cudaMalloc(&data, kCount * sizeof(float)));
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  hora::TensorView tensor = hora::view(static_cast<float*>(data), kCount);
  tensor.device = world.device();
  tensor.stream = stream;
  for (int i = 0; i < kRounds; ++i) {
    hora::allreduce_async(world, tensor, {.name = "x"}).synchronize();
  }
  if (world.rank() == world.size() - 1) die_inside(world, tensor);
  const auto begin = std::chrono::steady_clock::now();
  try {
    // Where the first one was cut short without an error, the second one has it.
    for (int i = 0; i < 2; ++i) {
      hora::allreduce_async(world, tensor, {.name = "x"}).synchronize();
    }
    say(world.rank(), "no error");
  } catch (const hora::Error& error) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begin);
    say(world.rank(), "free after " + std::to_string(waited.count()) + " ms: " + error.what());
  }
  // No shutdown: it would wait for a rank that is gone.
  std::_Exit(3);
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
    run(world);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
  }
  return 1;
}
