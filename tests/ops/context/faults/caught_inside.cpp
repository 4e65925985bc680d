#include "tests/ops/context/faults/caught_inside.h"

#include <hora/hora.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

namespace hora::test {
namespace {

constexpr std::int64_t kElements = 5000;

hora::Buffer filled(const hora::Context& world, float value) {
  hora::Buffer buffer(world, kElements * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(buffer.data()), kElements, value);
  return buffer;
}

hora::TensorView floats_of(const hora::Buffer& buffer) {
  return hora::view(reinterpret_cast<float*>(buffer.data()), kElements);
}

/// Drops handles of every kind, on memory of every kind, which the exception frees.
[[noreturn]] void throw_with_everything_open(const hora::Context& world,
                                             const hora::Result& gathered) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<float> own(1000 * ranks, 1.0F), other(1000 * ranks, 1.0F);
  const hora::Buffer buffer = filled(world, 1.0F);
  const hora::Result received = gathered;
  const std::vector<hora::TensorView> group{hora::view(own), hora::view(other)};
  const hora::Handle in_own = hora::allreduce_async(world, hora::view(own), {.name = "own"});
  const hora::Handle in_buffer = hora::allreduce_async(world, floats_of(buffer), {.name = "b"});
  const hora::Handle in_result = hora::allreduce_async(world, received.view(), {.name = "result"});
  const hora::ResultHandle all = hora::allgather_async(world, hora::view(other), {.name = "all"});
  const hora::GroupHandle reduced = hora::grouped_allreduce_async(world, group, {.name = "r"});
  const hora::ResultGroupHandle exchanged =
      hora::grouped_alltoall_async(world, group, {.name = "e"});
  throw std::runtime_error("the application's own error");
}

void catch_with_everything_open(const hora::Context& world, hora::Result gathered) {
  try {
    const hora::Result last = std::move(gathered);
    throw_with_everything_open(world, last);
  } catch (const std::runtime_error&) {
  }
}

}  // namespace

int catch_inside() {
  hora::Context world = hora::init();
  bool right = true;
  for (int first = 0; first < world.size(); ++first) {
    const std::vector<float> part(kElements / static_cast<std::size_t>(world.size()), 1.0F);
    hora::Result gathered = hora::allgather(world, hora::view(part), {.name = "gathered"});
    std::vector<hora::Buffer> allocated;
    if (world.rank() == first) {
      catch_with_everything_open(world, std::move(gathered));
      for (int i = 0; i < 8; ++i) allocated.push_back(filled(world, 7.0F));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (world.rank() != first) catch_with_everything_open(world, std::move(gathered));
    std::vector<float> values(100, 1.0F);
    hora::allreduce(world, hora::view(values), {.name = "next", .op = hora::ReduceOp::sum});
    right = right && values.back() == static_cast<float>(world.size());
    for (const hora::Buffer& buffer : allocated) {
      const auto* const begin = reinterpret_cast<const float*>(buffer.data());
      right = right && std::all_of(begin, begin + kElements, [](float v) { return v == 7.0F; });
    }
  }
  world.shutdown();
  std::printf("rank %d: %s\n", world.rank(), right ? "went on" : "wrong values");
  std::fflush(stdout);
  return 0;
}

}  // namespace hora::test
