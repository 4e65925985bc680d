#include "examples/vision/train/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "examples/vision/train/epoch_steps.h"
#include "tests/examples/vision/train/trial_run.h"
#include "tests/frameworks/torch/checkpoint/trained.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using hora::internal::test::generator;
using hora::internal::test::SharedFolder;
using hora::internal::test::TemporaryFolder;
using test::kEpochs;
using test::kSamples;
using test::TrialRun;
using test::Variant;
using testing::Gt;

void expect_equal_bits(const std::vector<torch::Tensor>& actual,
                       const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i << '\n' << actual[i] << expected[i];
  }
}

class TrainingStateTest : public testing::Test {
 protected:
  const hora::Context world_ = hora::init();
};

class Interrupted : public TrainingStateTest, public testing::WithParamInterface<Variant> {};

TEST_P(Interrupted, AtRandomStepsItEndsWithTheBitsOfATrainingThatNeverStopped) {
  const SharedFolder folder(world_);
  const bool per_node = GetParam().per_node;
  const TrainingStateOptions options{
      .folder = folder.file("node-" + std::to_string(per_node ? world_.cross_rank() : 0)),
      .resume = "auto",
      .per_node = per_node};
  TrialRun uninterrupted(world_, {}, GetParam());
  EXPECT_FALSE(uninterrupted.train(-1));
  const auto expected = uninterrupted.values();
  const auto all = static_cast<std::uint64_t>(uninterrupted.state->progress().steps);

  auto random = generator();
  std::set<std::int64_t> at;
  while (at.size() < 5) at.insert(1 + static_cast<std::int64_t>(random() % all));
  double seconds = 0;
  for (const std::int64_t step : at) {
    TrialRun run(world_, options, GetParam());
    EXPECT_EQ(run.state->resume().empty(), step == *at.begin());
    if (step != *at.begin()) {
      EXPECT_GT(run.state->progress().seconds, seconds);
      EXPECT_GE(run.state->seconds(), run.state->progress().seconds);
    }
    seconds = run.state->progress().seconds;
    EXPECT_TRUE(run.train(step));
    EXPECT_TRUE(run.state->interrupted());
    // A node has lost its files.
    if (per_node && world_.cross_size() > 1 && world_.cross_rank() == 0 &&
        world_.local_rank() == 0) {
      fs::remove_all(options.folder);
    }
    hora::barrier(world_);
  }
  TrialRun last(world_, options, GetParam());
  EXPECT_EQ(last.state->resume(), options.folder);
  EXPECT_EQ(last.state->progress().steps, *at.rbegin());
  EXPECT_FALSE(last.train(-1));
  last.state->wait();
  expect_equal_bits(last.values(), expected);
  EXPECT_EQ(last.state->progress().best_accuracy, 10.0 * kEpochs);
}

INSTANTIATE_TEST_SUITE_P(Variants, Interrupted,
                         testing::Values(Variant{"plain"}, Variant{"per_node", true},
                                         Variant{"power_sgd", false, true}),
                         [](const auto& of) { return of.param.name; });

TEST_F(TrainingStateTest, SavesAfterEachSoManySteps) {
  const SharedFolder folder(world_);
  const TrainingStateOptions options{
      .folder = folder.file("a"), .resume = "auto", .every_steps = 2};
  {
    TrialRun run(world_, options);
    EXPECT_TRUE(run.train(5));
  }
  TrialRun resumed(world_, options);
  EXPECT_EQ(resumed.state->resume(), folder.file("a"));
  EXPECT_EQ(resumed.state->progress().steps, 4);
}

TEST_F(TrainingStateTest, AllRanksSumsOfTheEpochGoOn) {
  const SharedFolder folder(world_);
  const TrainingStateOptions options{.folder = folder.file("a"), .resume = "auto"};
  const auto sum_of_ranks = [&](double value) {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "sum", .op = hora::ReduceOp::sum});
    return value;
  };
  double expected = 0;
  {
    TrialRun run(world_, options);
    run.train(3);
    run.state->interrupted();
    expected = sum_of_ranks(run.sum_of_losses);
  }
  TrialRun resumed(world_, options);
  resumed.state->resume();
  EXPECT_NEAR(sum_of_ranks(resumed.state->progress().loss), expected, 1e-9);
  EXPECT_NEAR(sum_of_ranks(resumed.state->progress().images), 9.0 * world_.size(), 1e-9);
}

TEST_F(TrainingStateTest, WithoutAFolderNothingIsSaved) {
  TrialRun run(world_, {});
  EXPECT_EQ(run.state->resume(), "");
  EXPECT_TRUE(run.train(3));
  EXPECT_FALSE(run.state->interrupted());
  EXPECT_EQ(run.state->progress().steps, 3);
}

/// Of the runs.
using Ranks = std::vector<int>;

class OtherRanks : public testing::TestWithParam<Ranks> {};

/// How often each sample was taken by the ranks that call it, and the others.
std::vector<int> times_taken(const std::vector<std::int64_t>& own) {
  std::vector<int> times(kSamples, 0);
  for (const std::int64_t sample : own) ++times[static_cast<std::size_t>(sample)];
  MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_INT, MPI_SUM,
                MPI_COMM_WORLD);
  return times;
}

/// Rank 0's folder on all ranks of MPI, also those that no context has.
std::string folder_of_rank_0(std::optional<TemporaryFolder>& own) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::array<char, 4096> path{};
  if (rank == 0) own.emplace().path().string().copy(path.data(), path.size() - 1);
  MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return path.data();
}

/// Runs of one epoch, all but the last of which are interrupted.
TEST_P(OtherRanks, GoOnWithTheEpochAndTakeNoSampleTwice) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 4) GTEST_SKIP() << "4 ranks are needed";
  std::optional<TemporaryFolder> own_folder;
  const TrainingStateOptions options{.folder = folder_of_rank_0(own_folder), .resume = "auto"};
  std::vector<std::int64_t> taken;
  double losses = 0;
  std::size_t width = 0;
  for (std::size_t part = 0; part < GetParam().size(); ++part) {
    const int ranks = GetParam()[part];
    width = 3 * static_cast<std::size_t>(ranks);
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const bool is_last = part + 1 == GetParam().size();
    double own = 0;
    double so_far = 0;
    if (rank < ranks) {
      const hora::Context world = hora::init({.ranks = members});
      TrialRun run(world, options);
      EXPECT_EQ(run.state->resume().empty(), part == 0);
      const std::int64_t begun = run.state->progress().steps;
      hora::DistributedSampler sampler = run.sampler;
      const EpochSteps steps(sampler, run.state->progress().position);
      const auto left = static_cast<std::int64_t>(steps.end() - steps.first());
      run.train(begun + (is_last ? left : 3));
      run.state->interrupted();
      taken.insert(taken.end(), run.taken.begin(), run.taken.end());
      own = run.sum_of_losses;
      so_far = run.state->progress().loss;
    }
    for (double* value : {&own, &so_far}) {
      MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    losses += own;
    EXPECT_NEAR(so_far, losses, 1e-9) << "the sum of the epoch's losses goes on";
    EXPECT_THAT(so_far, Gt(0));
  }
  const std::vector<int> times = times_taken(taken);
  EXPECT_EQ(*std::max_element(times.begin(), times.end()), 1);
  EXPECT_LT(static_cast<std::size_t>(std::count(times.begin(), times.end(), 0)), width);
}

INSTANTIATE_TEST_SUITE_P(Numbers, OtherRanks,
                         testing::Values(Ranks{2, 4}, Ranks{4, 2}, Ranks{4, 3, 1}, Ranks{1, 4, 2}),
                         [](const auto& of) {
                           std::string name;
                           for (const int ranks : of.param) name += std::to_string(ranks);
                           return name;
                         });

}  // namespace
}  // namespace vision
