// A training that is resumed has the bits of one that never stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/gradient_hook.h>
#include <mpi.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/frameworks/torch/checkpoint/trained.h"

namespace hora::internal::test {
namespace {

struct Variant {
  std::string name;
  std::function<TrainedOptions()> options;
  bool per_node = false;
};

TrainedOptions plain() {
  return {};
}
TrainedOptions sharded() {
  return {.optimizer = {.bucket_bytes = 1024, .sharding = Sharding::state}, .make = make_adam};
}

const Variant kVariants[] = {
    {"sgd", plain},
    {"adam_scaled", [] { return TrainedOptions{.make = make_adam, .scaled = true}; }},
    {"adam_sharded", sharded},
    {"adam_sharded_per_node", sharded, true},
    {"top_k",
     [] {
       return TrainedOptions{
           .optimizer = {.bucket_bytes = 1024,
                         .hook = std::make_shared<TopK>(TopKOptions{.share = 0.1})}};
     }},
    {"power_sgd",
     [] {
       return TrainedOptions{.optimizer = {.bucket_bytes = 1024,
                                           .hook = std::make_shared<PowerSgd>(
                                               PowerSgdOptions{.rank = 1, .start_step = 3})}};
     }},
};

class Resume : public testing::TestWithParam<Variant> {
 protected:
  const Context world_ = init();
};

TEST_P(Resume, HasTheSameBitsAtAnyStep) {
  constexpr std::int64_t kSteps = 14;
  const SharedFolder folder(world_);
  std::vector<std::int64_t> at(kSteps);
  std::iota(at.begin(), at.end(), 0);
  auto random = generator();
  std::ranges::shuffle(at, random);
  at.resize(5);
  const auto folder_of = [&](std::int64_t step) {
    return folder.file("node-" + std::to_string(GetParam().per_node ? world_.cross_rank() : 0) +
                       "/step-" + std::to_string(step));
  };

  std::vector<torch::Tensor> uninterrupted;
  {
    const TrainedOptions options = GetParam().options();
    Trained run(world_, options, seed());
    std::vector<Checkpoint> checkpoints;  // each is written while training goes on
    while (run.steps < kSteps) {
      if (std::ranges::find(at, run.steps) != at.end()) {
        checkpoints.emplace_back(world_, CheckpointOptions{.folder = folder_of(run.steps),
                                                           .per_node = GetParam().per_node});
        run.add_to(checkpoints.back(), options);
        checkpoints.back().save({.step = run.steps, .epoch = 1});
      }
      run.step();
    }
    for (Checkpoint& checkpoint : checkpoints) checkpoint.wait();
    uninterrupted = run.values();
  }
  for (const std::int64_t step : at) {
    SCOPED_TRACE("resumed at step " + std::to_string(step));
    const TrainedOptions options = GetParam().options();
    Trained run(world_, options, seed() + 1);
    Checkpoint checkpoint(world_, {.folder = folder_of(step), .per_node = GetParam().per_node});
    run.add_to(checkpoint, options);
    EXPECT_EQ(checkpoint.load(), (CheckpointPosition{.step = step, .epoch = 1}));
    EXPECT_EQ(run.steps, step);
    EXPECT_EQ(run.sampler, step == 0 ? "" : "after " + std::to_string(step));
    while (run.steps < kSteps) run.step();
    expect_same_bits(run.values(), uninterrupted);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Resume, testing::ValuesIn(kVariants),
                         [](const auto& of) { return of.param.name; });

/// Steps `from` to `to` by the first `ranks` ranks of MPI; the others wait. Batches are those of
/// the step, cut for `ranks`. Resumes from `folder`, and saves into it.
std::vector<torch::Tensor> train(int ranks, bool shard, std::int64_t to,
                                 const std::string& folder) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<torch::Tensor> values;
  if (rank < ranks) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const Context world = init({.ranks = members});
    TrainedOptions options = sharded();
    options.optimizer.sharding = shard ? Sharding::state : Sharding::off;
    Trained run(world, options, seed() + static_cast<std::uint64_t>(to));
    Checkpoint checkpoint(world, {.folder = folder});
    run.add_to(checkpoint, options);
    const auto position = checkpoint.load();
    EXPECT_EQ(position.has_value(), to != 4);  // not in the first part
    while (run.steps < to) {
      const Batch whole = whole_batch(seed() + static_cast<std::uint64_t>(run.steps), 12);
      run.step(part_of(whole, rank, 12 / ranks));
    }
    checkpoint.save({.step = run.steps});
    checkpoint.wait();
    run.optimizer.complete_parameters();
    values = copies_of(run.network->parameters());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return values;
}

/// Rank 0's folder on all ranks of MPI, also those that no context has.
std::string folder_of_rank_0(std::optional<TemporaryFolder>& own) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) own.emplace();
  std::string path = own ? own->path().string() : "";
  int size = static_cast<int>(path.size());
  MPI_Bcast(&size, 1, MPI_INT, 0, MPI_COMM_WORLD);
  path.resize(static_cast<std::size_t>(size));
  MPI_Bcast(path.data(), size, MPI_CHAR, 0, MPI_COMM_WORLD);
  return path;
}

/// Ranks of three parts of a training, and whether each of them shards its state.
struct Parts {
  int ranks[3];
  bool shard[3];
};

class OtherRanks : public testing::TestWithParam<Parts> {};

// One global batch: the sum's order differs, and nothing else.
TEST_P(OtherRanks, ContinueTheTraining) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 4) GTEST_SKIP() << "4 ranks are needed";
  std::optional<TemporaryFolder> own;
  const std::string folder = folder_of_rank_0(own);
  std::vector<torch::Tensor> expected;
  for (const std::int64_t to : {4, 8, 12}) {
    expected = train(GetParam().ranks[0], false, to, folder + "/alike");
  }
  std::vector<torch::Tensor> actual;
  for (int part = 0; part < 3; ++part) {
    actual =
        train(GetParam().ranks[part], GetParam().shard[part], 4 * (part + 1), folder + "/other");
  }
  if (expected.empty() || actual.empty()) return;
  expect_close(actual, expected, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, OtherRanks,
    testing::Values(Parts{{2, 4, 2}, {true, true, true}}, Parts{{4, 2, 4}, {true, true, true}},
                    Parts{{2, 4, 2}, {false, true, false}}, Parts{{4, 2, 4}, {true, false, true}},
                    Parts{{2, 4, 4}, {false, false, true}}, Parts{{3, 1, 4}, {true, true, true}}),
    [](const auto& of) {
      std::string name;
      for (int part = 0; part < 3; ++part) {
        name += std::to_string(of.param.ranks[part]) + (of.param.shard[part] ? "sharded" : "whole");
      }
      return name;
    });

}  // namespace
}  // namespace hora::internal::test
