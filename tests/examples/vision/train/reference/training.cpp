#include "tests/examples/vision/train/reference/training.h"

#include <gtest/gtest.h>
#include <hora/torch.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>
#include <utility>

#include "examples/vision/train/steps.h"
#include "tests/examples/vision/models/formula.h"

namespace vision::test {
namespace {

std::shared_ptr<Classifier> begin(const Training& training) {
  ModelOptions options = training.model;
  options.classes = formula_classes;
  options.zero_init_residual = training.architecture.starts_with("resnet");
  std::shared_ptr<Classifier> model = make_model(training.architecture, options);
  fill_weights_by_formula(*model);
  model->to(training.type);
  model->train(!training.running_statistics);
  return model;
}

hora::DistributedSampler make_sampler(const Training& training, const Dataset& data, int rank,
                                      int size) {
  return hora::DistributedSampler(data.size(),
                                  {.rank = rank,
                                   .size = size,
                                   .seed = 3,
                                   .shuffle = training.order.empty(),
                                   .batch = training.batch / static_cast<std::size_t>(size)});
}

void start_epoch(Batches& batches, const Training& training, hora::DistributedSampler& sampler,
                 std::uint64_t epoch) {
  sampler.set_epoch(epoch);
  std::vector<std::size_t> samples = sampler.local_order();
  if (!training.order.empty()) {
    for (std::size_t& sample : samples) sample = training.order.at(sample);
  }
  batches.start(epoch, std::move(samples));
}

std::unique_ptr<Batches> make_batches(const Training& training, const Dataset& data,
                                      const hora::DistributedSampler& sampler) {
  return std::make_unique<Batches>(data, training.transform,
                                   LoaderOptions{.batch = sampler.options().batch, .workers = 1},
                                   torch::kCPU);
}

}  // namespace

std::vector<std::uint8_t> formula_pixels(std::size_t index, std::size_t side) {
  const std::size_t count = image_channels * side * side;
  const std::string label = std::to_string(index % formula_classes);
  const std::vector<std::uint8_t> common = formula_bytes("class " + label, count);
  std::vector<std::uint8_t> pixels = formula_bytes("image " + std::to_string(index), count);
  std::transform(
      common.begin(), common.end(), pixels.begin(), pixels.begin(),
      [](int shared, int own) { return static_cast<std::uint8_t>((shared + 2 * own) / 3); });
  return pixels;
}

PlanarImages formula_data(std::size_t count, int side) {
  PlanarRecords records{.files = {{"formula", count}}, .pixels = {}, .labels = {}};
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<std::uint8_t> pixels = formula_pixels(i, static_cast<std::size_t>(side));
    records.pixels.insert(records.pixels.end(), pixels.begin(), pixels.end());
    records.labels.push_back(static_cast<std::uint8_t>(i % formula_classes));
  }
  return {"formula",
          std::vector<std::string>(formula_classes, "class"),
          {side, side},
          std::move(records)};
}

Normalisation halves() {
  return {{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}};
}

TransformOptions unchanged(int side) {
  return {.geometry = RandomCrop{{side, side}, 0}, .normalisation = halves()};
}

std::vector<double> losses_of_ranks(const hora::Context& world, const Training& training,
                                    const Dataset& data) {
  const std::shared_ptr<Classifier> model = begin(training);
  const auto wrapped = make_optimizer(training.optimizer, model->named_parameters());
  hora::DistributedOptimizer optimizer(world, *wrapped, model->named_parameters());
  hora::broadcast_parameters(world, *model);
  hora::GradScaler scaler(optimizer, {.enabled = false});
  hora::FiniteCheck finite(world, model->named_parameters());
  const auto forward = [&](const torch::Tensor& images) {
    return model->forward(images.to(training.type));
  };
  hora::DistributedSampler sampler = make_sampler(training, data, world.rank(), world.size());
  const auto batches = make_batches(training, data, sampler);
  const auto steps = static_cast<std::int64_t>(sampler.steps());
  const hora::LearningRateSchedule schedule(training.schedule, steps);

  std::vector<double> losses;
  for (std::uint64_t epoch = 0; epoch < training.epochs; ++epoch) {
    start_epoch(*batches, training, sampler, epoch);
    for (std::int64_t i = 0; i < steps; ++i) {
      schedule.apply(optimizer, static_cast<std::int64_t>(losses.size()));
      losses.push_back(train_step({}, forward, *batches, optimizer, scaler, finite).loss);
    }
  }
  hora::allreduce(world, hora::view(losses.data(), static_cast<std::int64_t>(losses.size())),
                  {.name = "losses"});
  return losses;
}

std::vector<double> losses_of_one_process(const Training& training, const Dataset& data,
                                          int parts) {
  const std::shared_ptr<Classifier> model = begin(training);
  const auto optimizer = make_optimizer(training.optimizer, model->named_parameters());
  std::vector<hora::DistributedSampler> samplers;
  std::vector<std::unique_ptr<Batches>> batches;
  for (int part = 0; part < parts; ++part) {
    samplers.push_back(make_sampler(training, data, part, parts));
    batches.push_back(make_batches(training, data, samplers.back()));
  }
  const auto steps = static_cast<std::int64_t>(samplers.front().steps());
  const hora::LearningRateSchedule schedule(training.schedule, steps);

  std::vector<double> losses;
  for (std::uint64_t epoch = 0; epoch < training.epochs; ++epoch) {
    for (std::size_t part = 0; part < batches.size(); ++part) {
      start_epoch(*batches[part], training, samplers[part], epoch);
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      schedule.apply(*optimizer, static_cast<std::int64_t>(losses.size()));
      optimizer->zero_grad();
      double sum = 0;
      for (const auto& part : batches) {
        const TensorBatch batch = part->next().value();
        const torch::Tensor loss = torch::nn::functional::cross_entropy(
            model->forward(batch.images.to(training.type)), batch.labels);
        loss.backward();
        sum += loss.item<double>();
      }
      for (const torch::Tensor& parameter : model->parameters()) {
        parameter.grad().div_(parts);
      }
      optimizer->step();
      losses.push_back(sum / parts);
    }
  }
  return losses;
}

double largest_difference(const hora::Context& world, const std::string& name,
                          const std::vector<double>& losses, const std::vector<double>& expected) {
  EXPECT_EQ(losses.size(), expected.size());
  double largest = 0;
  std::ostringstream growth;
  for (std::size_t i = 0; i < std::min(losses.size(), expected.size()); ++i) {
    const double difference = std::abs(losses[i] - expected[i]) / expected[i];
    largest = std::max(largest, difference);
    if (i == 0 || (i + 1) % 10 == 0) growth << ' ' << difference;
  }
  if (world.rank() == 0) {
    std::cout << name << ", relative difference of the steps 1, 10, 20, ...:" << growth.str()
              << "; largest " << largest << std::endl;
  }
  return largest;
}

}  // namespace vision::test
