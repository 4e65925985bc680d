// Ranks run out of data: those that have joined contribute identity elements to the others'
// reductions of tensors on fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/ops/nccl/gpu_program.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/seed.h"

namespace hora {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using test::Step;
using Bytes = std::vector<std::byte>;

/// Reductions alone: others are errors while a rank has joined.
std::vector<Step> random_reductions(const GpuWorld& world, std::mt19937_64& random) {
  auto program = test::random_program(world.size(), world.nodes(), 20, random);
  std::erase_if(program, [](const Step& s) { return s.kind != OperationKind::allreduce; });
  return program;
}

/// All of them on the GPU and, by another name, in host memory: the bytes must be equal.
void play(GpuWorld& world, int rank, const std::vector<Step>& program) {
  Engine& engine = world.engine(rank);
  std::vector<std::unique_ptr<DeviceTensor>> tensors;
  std::vector<Bytes> host;
  for (const Step& step : program) {
    host.push_back(step.values[static_cast<std::size_t>(rank)]);
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), step.type, host.back()));
  }
  std::vector<std::shared_ptr<Submission>> submissions;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const std::string name = std::to_string(i);
    Signature signature = program[i].signature(*tensors[i]);
    submissions.push_back(
        engine.submit("gpu" + name, signature, tensors[i]->data(), tensors[i]->stream()));
    signature.device = DeviceKind::cpu;
    submissions.push_back(engine.submit("cpu" + name, signature, host[i].data()));
  }
  for (const auto& submission : submissions) engine.wait(*submission);
  for (std::size_t i = 0; i < program.size(); ++i) {
    EXPECT_EQ(tensors[i]->read(), host[i])
        << "rank " << rank << ", " << to_string(program[i].signature(*tensors[i]));
  }
}

class GpuJoin : public testing::TestWithParam<std::vector<int>> {};

TEST_P(GpuJoin, TheOthersReduceAsInHostMemory) {
  auto random = test::generator();
  test::GpuWorldOptions options{.node_sizes = GetParam()};
  options.settings.chunk_size = 4096;
  options.gpu.seed = test::seed();
  options.gpu.longest_delay = std::chrono::microseconds(200);
  GpuWorld world(options);
  const auto program = random_reductions(world, random);
  const auto shift = static_cast<int>(random() % 3);
  world.on_all_ranks([&](int rank) {
    // New names and known ones; each rank is among the first to join, and among the last.
    for (int epoch = 0; epoch < 3; ++epoch) {
      const int rounds = 1 + (rank + epoch + shift) % 3;
      for (int round = 0; round < rounds; ++round) play(world, rank, program);
      world.engine(rank).join(kWorld);
    }
    play(world, rank, program);
  });
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuJoin,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3},
                                         std::vector{1, 1, 1}));

}  // namespace
}  // namespace hora
