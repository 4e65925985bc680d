#include "examples/vision/train/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "examples/vision/train/program.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using hora::internal::test::generator;
using hora::internal::test::seed;
using hora::internal::test::SharedFolder;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using Samples = std::vector<std::size_t>;

constexpr int kSamples = 103;
constexpr int kEpochs = 2;

hora::DistributedSampler sampler_of(int rank, int size, std::size_t batch) {
  return hora::DistributedSampler(kSamples,
                                  {.rank = rank, .size = size, .seed = seed(), .batch = batch});
}

/// The samples that a loader with this batch gives in the steps.
Samples taken(const EpochSteps& steps, std::size_t begin, std::size_t end, std::size_t batch) {
  const Samples samples = steps.samples();
  const std::size_t first = (steps.first_of_samples() + begin - steps.first()) * batch;
  return Samples(samples.begin() + static_cast<std::ptrdiff_t>(first),
                 samples.begin() + static_cast<std::ptrdiff_t>(first + (end - begin) * batch));
}

TEST(EpochSteps, InterruptedAtAnyStepTheRestIsThatOfAWholeEpoch) {
  hora::DistributedSampler sampler = sampler_of(1, 2, 4);
  const EpochSteps whole(sampler, {.epoch = 3});
  EXPECT_EQ(whole.first(), 0U);
  EXPECT_EQ(whole.samples(), sampler.local_order());
  for (std::size_t done = 0; done < 12; ++done) {
    hora::DistributedSampler other = sampler_of(1, 2, 4);
    const EpochSteps resumed(other, whole.after(done));
    EXPECT_EQ(resumed.first(), done + 1);
    for (const EpochSteps* const steps : {&whole, &resumed}) {
      EXPECT_EQ(steps->end(), 12U);
      EXPECT_EQ(steps->after(11).consumed, 96U);
    }
    EXPECT_EQ(taken(resumed, done + 1, 12, 4), taken(whole, done + 1, 12, 4));
    EXPECT_EQ(resumed.samples(), whole.samples()) << "for what takes the place of a bad image";
  }
}

TEST(EpochSteps, OnOtherRanksNoSampleIsTakenTwiceAndLessThanAStepIsLeftOut) {
  auto random = generator();
  for (int i = 0; i < 100; ++i) {
    std::map<std::size_t, int> times;
    hora::SamplerPosition position{.epoch = 1};
    std::size_t width = 0;
    for (int run = 0; run < 3; ++run) {
      const int size = 1 + static_cast<int>(random() % 5);
      const std::size_t batch = 1 + random() % 7;
      width = batch * static_cast<std::size_t>(size);
      hora::SamplerPosition reached = position;
      std::size_t stop = 0;
      for (int rank = 0; rank < size; ++rank) {
        hora::DistributedSampler sampler = sampler_of(rank, size, batch);
        const EpochSteps steps(sampler, position);
        EXPECT_LE(steps.end(), kSamples / width);
        EXPECT_GE(steps.end() + 1, kSamples / width);
        if (rank == 0) stop = steps.first() + random() % (steps.end() - steps.first() + 1);
        if (run == 2) stop = steps.end();
        if (stop == steps.first()) continue;
        for (const std::size_t sample : taken(steps, steps.first(), stop, batch)) ++times[sample];
        reached = steps.after(stop - 1);
      }
      position = reached;
      EXPECT_EQ(times.size(), position.consumed);
    }
    for (const auto& [sample, count] : times) EXPECT_EQ(count, 1) << sample;
    EXPECT_LT(kSamples - times.size(), width);
  }
}

TEST(TrainingProgress, IsDescribedAsPeopleCount) {
  EXPECT_EQ(describe(TrainingProgress()), "before epoch 1");
  EXPECT_EQ(describe({.position = {.epoch = 2}}), "after epoch 2");
  EXPECT_EQ(describe({.position = {.epoch = 2, .consumed = 96, .samples = 128}}),
            "in epoch 3, after 96 of 128 images");
}

struct Variant {
  std::string name;
  bool per_node = false;
  bool hook = false;
};

/// A training on made-up samples, with BatchNorm and dropout, which draws from the rank's random
/// state.
struct TrialRun {
  TrialRun(const hora::Context& given, const CheckpointOptions& options,
           const Variant& variant = {}, std::uint64_t seed_of_order = seed())
      : world(given),
        model(network()),
        sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        hook(variant.hook ? std::make_shared<hora::PowerSgd>(
                                hora::PowerSgdOptions{.rank = 1, .start_step = 2})
                          : nullptr),
        optimizer(world, sgd, model->named_parameters(), {.bucket_bytes = 256, .hook = hook}),
        scaler(optimizer, {.initial_scale = 1024.0, .growth_interval = 3}),
        sampler(kSamples,
                {.rank = world.rank(), .size = world.size(), .seed = seed_of_order, .batch = 3}) {
    state.emplace(world, options, *model, optimizer, scaler, sampler, hook.get());
    torch::manual_seed(seed() + 10 + static_cast<std::uint64_t>(world.rank()));
  }

  static torch::nn::Sequential network() {
    torch::manual_seed(seed());
    return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                                 torch::nn::Tanh(), torch::nn::Dropout(0.2),
                                 torch::nn::Linear(8, 3));
  }
  /// A sample's image: the same in each run.
  static torch::Tensor image(std::size_t sample) {
    const auto from = static_cast<double>(sample);
    return torch::arange(from, from + 6, torch::kFloat).sin();
  }

  /// True where the last step asked for was made before the training's end.
  bool train(std::int64_t until_step) {
    hora::DistributedSampler own = sampler;
    while (state->epochs() < kEpochs) {
      const EpochSteps steps(own, state->progress().position);
      const std::vector<std::size_t> samples = steps.samples();
      for (std::size_t step = steps.first(); step < steps.end(); ++step) {
        const std::size_t place = 3 * (steps.first_of_samples() + step - steps.first());
        const double loss = make_step({samples.begin() + static_cast<std::ptrdiff_t>(place),
                                       samples.begin() + static_cast<std::ptrdiff_t>(place + 3)});
        state->step_done(steps.after(step), loss, 3);
        if (state->progress().steps == until_step) return true;
      }
      hora::broadcast_buffers(world, *model);
      state->epoch_done(/*accuracy=*/10.0 * (1 + state->epochs()));
    }
    return false;
  }

  double make_step(const std::vector<std::size_t>& samples) {
    std::vector<torch::Tensor> images;
    std::vector<std::int64_t> labels;
    for (const std::size_t sample : samples) {
      images.push_back(image(sample));
      labels.push_back(static_cast<std::int64_t>(sample % 3));
    }
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::cross_entropy_loss(model->forward(torch::stack(images)), torch::tensor(labels));
    scaler.scale(loss).backward();
    scaler.step();
    scaler.update();
    sum_of_losses += 3 * loss.item<double>();
    return loss.item<double>();
  }

  /// All that the training has changed, on rank 0's side where ranks differ.
  std::vector<torch::Tensor> values() {
    hora::broadcast_buffers(world, *model);
    std::vector<torch::Tensor> all;
    for (const auto& tensor : hora::weights_of(*model)) all.push_back(tensor.value().clone());
    all.push_back(torch::tensor(scaler.current_scale(), torch::kDouble));
    all.push_back(torch::rand({4}));
    return all;
  }

  const hora::Context& world;
  torch::nn::Sequential model;
  torch::optim::SGD sgd;
  std::shared_ptr<hora::PowerSgd> hook;
  hora::DistributedOptimizer optimizer;
  hora::GradScaler scaler;
  hora::DistributedSampler sampler;
  std::optional<TrainingState> state;
  double sum_of_losses = 0;
};

class TrainingStateTest : public testing::Test {
 protected:
  /// Begins a training, leaves it after three steps, and gives its sum of losses.
  double interrupt(const CheckpointOptions& options) const {
    TrialRun run(world_, options);
    run.train(3);
    run.state->interrupted();
    return run.sum_of_losses;
  }

  const hora::Context world_ = hora::init();
};

class Interrupted : public TrainingStateTest, public testing::WithParamInterface<Variant> {};

TEST_P(Interrupted, AtRandomStepsItEndsWithTheBitsOfATrainingThatNeverStopped) {
  const SharedFolder folder(world_);
  const bool per_node = GetParam().per_node;
  const CheckpointOptions options{
      .folder = folder.file("node-" + std::to_string(per_node ? world_.cross_rank() : 0)),
      .resume = "auto",
      .per_node = per_node};
  TrialRun uninterrupted(world_, {}, GetParam());
  EXPECT_EQ(uninterrupted.state->resume(), "");
  EXPECT_FALSE(uninterrupted.train(-1));
  EXPECT_FALSE(uninterrupted.state->interrupted()) << "without a folder nothing is saved";
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
  hora::internal::test::expect_equal(last.values(), expected);
  EXPECT_EQ(last.state->progress().best_accuracy, 10.0 * kEpochs);
}

INSTANTIATE_TEST_SUITE_P(Variants, Interrupted,
                         testing::Values(Variant{"plain"}, Variant{"per_node", true},
                                         Variant{"power_sgd", false, true}),
                         [](const auto& of) { return of.param.name; });

TEST_F(TrainingStateTest, AllRanksSumsOfTheEpochGoOn) {
  const SharedFolder folder(world_);
  const CheckpointOptions options{.folder = folder.file("a"), .resume = "auto"};
  std::array sums{interrupt(options), 0.0, 0.0};
  TrialRun resumed(world_, options);
  resumed.state->resume();
  sums[1] = resumed.state->progress().loss;
  sums[2] = resumed.state->progress().images;
  hora::allreduce(world_, hora::view(sums.data(), 3), {.name = "sums", .op = hora::ReduceOp::sum});
  EXPECT_NEAR(sums[1], sums[0], 1e-9);
  EXPECT_NEAR(sums[2], 9.0 * world_.size(), 1e-9);
}

TEST_F(TrainingStateTest, WhatCannotGoOnIsRefusedByAllRanksAlike) {
  const auto expect_refused = [&](const CheckpointOptions& options, const auto& text,
                                  std::uint64_t seed_of_order = seed()) {
    TrialRun run(world_, options, {}, seed_of_order);
    EXPECT_THAT([&] { run.state->resume(); }, testing::ThrowsMessage<CommonError>(text));
  };
  const SharedFolder folder(world_);
  TrialRun automatic(world_, {.folder = folder.file("empty"), .resume = "auto"});
  EXPECT_EQ(automatic.state->resume(), "") << "where there is nothing, only auto begins anew";
  expect_refused({.resume = folder.file("none")}, HasSubstr("there is no checkpoint on any rank"));
  expect_refused({.resume = folder.file("mine/best")}, HasSubstr("mine/best"));

  const CheckpointOptions options{.folder = folder.file("a"), .resume = "auto"};
  interrupt(options);
  expect_refused(options, AllOf(HasSubstr("in epoch 1, after"), HasSubstr("shuffled by seed")),
                 seed() + 1);
  hora::barrier(world_);
  if (world_.rank() == 0) fs::resize_file(folder.file("a/last/state.safetensors"), 100);
  hora::barrier(world_);
  expect_refused(options, AllOf(HasSubstr("--resume auto"), HasSubstr("state.safetensors")));

  hora::Checkpoint other(world_, {.folder = folder.file("b")});
  other.add_weights(*automatic.model);
  other.save({.step = 1});
  other.wait();
  expect_refused({.resume = folder.file("b")}, HasSubstr("no progress of a training"));
}

TEST_F(TrainingStateTest, SavesAfterEachSoManyStepsAndTakesTheSlotThatIsNamed) {
  const SharedFolder folder(world_);
  const std::string models = folder.file("a");
  {
    TrialRun run(world_, {.folder = models, .every_steps = 2});
    run.train(3);
    run.state->epoch_done(/*accuracy=*/50);
    run.train(7);
    run.state->wait();
  }
  const auto steps_in = [&](const std::string& named) {
    TrialRun run(world_, {.resume = named});
    EXPECT_EQ(run.state->resume(), named);
    return run.state->progress().steps;
  };
  EXPECT_EQ(steps_in(models), 6);
  EXPECT_EQ(steps_in(models + "/last"), 6);
  EXPECT_EQ(steps_in(models + "/previous"), 4);
  EXPECT_EQ(steps_in(models + "/best"), 3);
  EXPECT_EQ(steps_in(models + "/./best//"), 3);
  {  // what was loaded is not the newest of the folder
    TrialRun run(world_, {.folder = models, .resume = models + "/best"});
    run.state->resume();
    EXPECT_TRUE(run.state->interrupted());
  }
  EXPECT_EQ(steps_in(models), 3);
}

TEST_F(TrainingStateTest, ANewTrainingReplacesNoneInSilence) {
  const SharedFolder folder(world_);
  const std::string models = folder.file("models");
  const auto refusal = [&](const std::string& resume) {
    return message_of([&] { check_unused({.folder = models, .resume = resume}); });
  };
  EXPECT_EQ(refusal(""), "");
  hora::barrier(world_);
  {
    TrialRun run(world_, {.folder = models});
    run.train(3);
    run.state->epoch_done(/*accuracy=*/50);
    run.state->wait();
  }
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("--model-dir " + models + ": it has a training already"),
                                 HasSubstr("--resume auto goes on")));
  EXPECT_THAT(refusal(folder.file("other")), HasSubstr("a training already"));
  for (const std::string& resume : {std::string("auto"), models, models + "/./best//"}) {
    EXPECT_EQ(refusal(resume), "");
  }
}

}  // namespace
}  // namespace vision
