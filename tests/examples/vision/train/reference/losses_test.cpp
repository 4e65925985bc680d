// Losses of trainings: those of Python, by numbers that make_losses.py has made, and with 1, 2 and
// 4 ranks those of one process at the same global batch.
#include <gmock/gmock.h>
#include <hora/torch.h>
#include <torch/nn/functional/loss.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "examples/vision/data/record_sets.h"
#include "examples/vision/train/optimizers.h"
#include "examples/vision/train/steps.h"
#include "tests/examples/vision/models/formula.h"
#include "tests/support/temporary_folder.h"

namespace vision {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

constexpr std::size_t formula_classes = 10;

/// Images 0 .. count-1 as `pixels` of make_losses.py gives them, with labels 0 to 9 in turn.
PlanarRecords formula_records(std::size_t count, int side) {
  PlanarRecords records{.files = {{"formula", count}}, .pixels = {}, .labels = {}};
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t label = index % formula_classes;
    const std::size_t bytes = image_bytes({side, side});
    const auto common = formula_bytes("class " + std::to_string(label), bytes);
    const auto own = formula_bytes("image " + std::to_string(index), bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      records.pixels.push_back(static_cast<std::uint8_t>((common[i] + 2 * own[i]) / 3));
    }
    records.labels.push_back(static_cast<std::uint8_t>(label));
  }
  return records;
}

PlanarImages formula_data(std::size_t count, int side) {
  const std::vector<std::string> classes(formula_classes, "class");
  return {"formula", classes, {side, side}, formula_records(count, side)};
}

constexpr Normalisation halves{{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}};

/// Images of this size as they are.
TransformOptions unchanged(int side) {
  return {.geometry = RandomCrop{{side, side}, 0}, .normalisation = halves};
}

struct Course {
  std::string architecture;
  ModelOptions model = {};  ///< the classes are the formula's, weights begin by the formula
  OptimizerSettings optimizer = {};
  hora::LearningRateOptions schedule = {};
  TransformOptions transform = {};
  std::size_t batch = 8;                ///< of all ranks
  std::uint64_t epochs = 1;             ///< that are made
  std::vector<std::size_t> order = {};  ///< of the samples; empty: as DistributedSampler draws it
  torch::ScalarType type = torch::kFloat;
  bool running_statistics = false;  ///< BatchNorm normalises by these and leaves them
};

std::shared_ptr<Classifier> begun(const Course& course) {
  ModelOptions options = course.model;
  options.classes = formula_classes;
  options.zero_init_residual = course.architecture.starts_with("resnet");
  std::shared_ptr<Classifier> model = make_model(course.architecture, options);
  fill_weights_by_formula(*model);
  model->to(course.type);
  model->train(!course.running_statistics);
  return model;
}

/// Returns step(schedule, number, batches) of each step, with the batches of the ranks from `first`
/// to `last` of `size`.
std::vector<double> losses_of(const Course& course, const Dataset& data, int size, int first,
                              int last, const auto& step) {
  std::vector<hora::DistributedSampler> samplers;
  std::vector<std::unique_ptr<Batches>> batches;
  const std::size_t batch = course.batch / static_cast<std::size_t>(size);
  for (int rank = first; rank <= last; ++rank) {
    samplers.push_back(hora::DistributedSampler(
        data.size(),
        {.rank = rank, .size = size, .seed = 3, .shuffle = course.order.empty(), .batch = batch}));
    batches.push_back(std::make_unique<Batches>(
        data, course.transform, LoaderOptions{.batch = batch, .workers = 1}, torch::kCPU));
  }
  const auto steps = static_cast<std::int64_t>(samplers.front().steps());
  const hora::LearningRateSchedule schedule(course.schedule, steps);
  std::vector<double> losses;
  for (std::uint64_t epoch = 0; epoch < course.epochs; ++epoch) {
    for (std::size_t part = 0; part < batches.size(); ++part) {
      samplers[part].set_epoch(epoch);
      std::vector<std::size_t> samples = samplers[part].local_order();
      for (std::size_t& sample : samples) {
        if (!course.order.empty()) sample = course.order.at(sample);
      }
      batches[part]->start(epoch, std::move(samples));
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      losses.push_back(step(schedule, static_cast<std::int64_t>(losses.size()), batches));
    }
  }
  return losses;
}

/// The mean over all ranks of the loss of each step, by the trainers' train_step(), each rank on
/// its part of every batch. Collective.
std::vector<double> losses_of_ranks(const hora::Context& world, const Course& course,
                                    const Dataset& data) {
  const std::shared_ptr<Classifier> model = begun(course);
  const auto wrapped = make_optimizer(course.optimizer, model->named_parameters());
  hora::DistributedOptimizer optimizer(world, *wrapped, model->named_parameters());
  hora::broadcast_parameters(world, *model);
  hora::GradScaler scaler(optimizer, {.enabled = false});
  hora::FiniteCheck finite(world, model->named_parameters());
  const auto forward = [&](const auto& images) { return model->forward(images.to(course.type)); };
  auto losses =
      losses_of(course, data, world.size(), world.rank(), world.rank(),
                [&](const auto& schedule, std::int64_t number, const auto& batches) {
                  schedule.apply(optimizer, number);
                  return train_step({}, forward, *batches.front(), optimizer, scaler, finite).loss;
                });
  hora::allreduce(world, hora::view(losses), {.name = "losses"});
  return losses;
}

/// The same by LibTorch alone, in one process. With `parts` of more than 1 the batch goes through
/// the network in that many parts, those of as many ranks one after the other, and their gradients
/// are added up in that order.
std::vector<double> losses_of_one_process(const Course& course, const Dataset& data,
                                          int parts = 1) {
  const std::shared_ptr<Classifier> model = begun(course);
  const auto optimizer = make_optimizer(course.optimizer, model->named_parameters());
  return losses_of(course, data, parts, 0, parts - 1,
                   [&](const auto& schedule, std::int64_t number, const auto& batches) {
                     schedule.apply(*optimizer, number);
                     optimizer->zero_grad();
                     double sum = 0;
                     for (const auto& part : batches) {
                       const TensorBatch batch = part->next().value();
                       const torch::Tensor loss = torch::nn::functional::cross_entropy(
                           model->forward(batch.images.to(course.type)), batch.labels);
                       loss.backward();
                       sum += loss.template item<double>();
                     }
                     for (const auto& parameter : model->parameters()) parameter.grad().div_(parts);
                     optimizer->step();
                     return sum / parts;
                   });
}

nlohmann::json python(const std::string& course) {
  return nlohmann::json::parse(std::ifstream(LOSSES)).at(course);
}

MATCHER_P(AreRelativelyNear, tolerance, "") {
  return std::abs(std::get<0>(arg) / std::get<1>(arg) - 1) <= tolerance;
}

auto sync_batch_norm(const hora::Context& world) {
  return [&world](std::int64_t channels) {
    return torch::nn::AnyModule(hora::SyncBatchNorm(world, torch::nn::BatchNormOptions(channels)));
  };
}

class FiftySteps : public testing::TestWithParam<const char*> {};

// With one rank BatchNorm is LibTorch's, with more SyncBatchNorm.
TEST_P(FiftySteps, HaveTheLossesOfPython) {
  const hora::Context world = hora::init();
  const nlohmann::json reference = python("fifty_steps").at(GetParam());
  const auto expected = reference.at("losses").get<std::vector<double>>();
  const int side = reference.at("side").get<int>();
  const double rate = reference.at("rate").get<double>();
  Course course{.architecture = GetParam(),
                .optimizer = {.learning_rate = rate,
                              .momentum = 0.9,
                              .weight_decay = 1e-4,
                              .decay_all = reference.at("decay_all").get<bool>()},
                .schedule = {.rate = rate, .decay = hora::LearningRateDecay::cosine, .epochs = 1},
                .transform = unchanged(side),
                .batch = reference.at("batch").get<std::size_t>()};
  course.order.resize(course.batch * expected.size());
  std::iota(course.order.begin(), course.order.end(), 0);
  if (world.size() > 1) course.model.batch_norm = sync_batch_norm(world);
  EXPECT_THAT(losses_of_ranks(world, course, formula_data(course.order.size(), side)),
              Pointwise(AreRelativelyNear(1e-4), expected));
}

INSTANTIATE_TEST_SUITE_P(All, FiftySteps, testing::Values("resnet18", "resnet50"),
                         [](const auto& name) { return std::string(name.param); });

// From the files, of which the first image is the test part's as well.
TEST(Stl10Path, HasTheFirstTenLossesOfPython) {
  const hora::Context world = hora::init();
  const nlohmann::json reference = python("stl10");
  const hora::internal::test::TemporaryFolder folder;
  const auto write = [&](const std::string& file, const std::vector<std::uint8_t>& bytes,
                         std::size_t count = SIZE_MAX) {
    std::ofstream(folder.file(file), std::ios::binary)
        << std::string(bytes.begin(), bytes.end()).substr(0, count);
  };
  PlanarRecords records =
      formula_records(reference.at("images").get<std::size_t>(), stl10_size.width);
  for (std::uint8_t& label : records.labels) ++label;
  write("train_X.bin", records.pixels);
  write("train_y.bin", records.labels);
  write("test_X.bin", records.pixels, image_bytes(stl10_size));
  write("test_y.bin", records.labels, 1);
  const DataSets data = open_stl10(folder.path());
  const Course course{.architecture = "resnet18",
                      .optimizer = {.momentum = 0.9, .weight_decay = 1e-4, .decay_all = true},
                      .schedule = {.rate = reference.at("rate").get<double>()},
                      .transform = {.geometry = Resize{{224, 224}}, .normalisation = halves},
                      .batch = reference.at("batch").get<std::size_t>(),
                      .order = reference.at("order").get<std::vector<std::size_t>>()};
  EXPECT_THAT(losses_of_ranks(world, course, *data.training),
              Pointwise(DoubleNear(1e-4), reference.at("losses").get<std::vector<double>>()));
}

enum class Norm {
  none,     ///< in the network
  running,  ///< by running statistics: the same for every image, whatever its batch
  of_rank,  ///< over the rank's part of the batch
  of_all_ranks,
};

struct CourseOfRanks {
  const char* name;
  const char* architecture;
  Norm norm;
  torch::ScalarType type;
  double tolerance;  ///< relative, to the losses of the whole batch
};

class LossCurves : public testing::TestWithParam<CourseOfRanks> {};

// To the bit where one process takes the parts of the batch one after the other. With the whole
// batch the order of sums is another, over the images of a batch, and BatchNorm's statistics.
TEST_P(LossCurves, AreThoseOfOneProcess) {
  const hora::Context world = hora::init();
  const auto& [name, architecture, norm, type, tolerance] = GetParam();
  constexpr int side = 32;
  const PlanarImages data = formula_data(160, side);
  Course course{.architecture = architecture,
                .model = {.base_width = 8, .dropout = 0.0},
                .optimizer = {.momentum = 0.9, .weight_decay = 1e-4},
                .schedule = {.rate = norm == Norm::none ? 0.02 : 0.1,
                             .warmup_start = 0.005,
                             .warmup_epochs = 1,
                             .decay = hora::LearningRateDecay::cosine,
                             .epochs = 4},
                .transform = unchanged(side),
                .batch = 16,
                .epochs = 4,
                .type = type,
                .running_statistics = norm == Norm::running};
  if (norm == Norm::of_all_ranks) course.model.batch_norm = sync_batch_norm(world);
  const std::vector<double> losses = losses_of_ranks(world, course, data);
  ASSERT_EQ(losses.size(), 40U);
  course.model.batch_norm = nullptr;
  if (norm != Norm::of_all_ranks && type == torch::kFloat) {
    EXPECT_EQ(losses, losses_of_one_process(course, data, world.size()));
  }
  if (norm != Norm::of_rank) {
    EXPECT_THAT(losses,
                Pointwise(AreRelativelyNear(tolerance), losses_of_one_process(course, data)));
  }
}

// In float32 a sum in another order can make max-pooling choose another of two equal values: 2e-7
// with LibTorch 1.13, 5e-4 with 2.11. In float64 there are none.
INSTANTIATE_TEST_SUITE_P(
    All, LossCurves,
    testing::Values(CourseOfRanks{"vgg11", "vgg11", Norm::none, torch::kFloat, 1e-3},
                    CourseOfRanks{"vgg11_float64", "vgg11", Norm::none, torch::kDouble, 1e-12},
                    CourseOfRanks{"running", "resnet20", Norm::running, torch::kFloat, 1e-6},
                    CourseOfRanks{"batch_norm", "resnet20", Norm::of_rank, torch::kFloat, 0},
                    CourseOfRanks{"sync", "resnet20", Norm::of_all_ranks, torch::kFloat, 1e-4}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace vision
