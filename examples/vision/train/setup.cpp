#include "examples/vision/train/setup.h"

#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/vision/data/open_data.h"
#include "examples/vision/train/device.h"
#include "examples/vision/train/mode.h"
#include "examples/vision/train/model.h"
#include "examples/vision/train/output_file.h"
#include "examples/vision/train/training_state.h"

namespace vision {
namespace {

// Images of a rank in one backward pass: fewer where there are too few for a step of all ranks.
std::size_t choose_batch(const hora::Context& world, const TrainingOptions& options,
                         std::size_t images) {
  const int accumulate = options.distribution.accumulate;
  const auto passes = static_cast<std::size_t>(world.size() * accumulate);
  if (images / passes < 2) {
    throw std::invalid_argument(fmt::format(
        "{} training images in batches of {} for {} ranks{}; expected at least 2 images "
        "for each rank{}, which BatchNorm needs",
        images, options.data.batch, world.size(),
        accumulate == 1 ? "" : fmt::format(" with --accumulate {}", accumulate),
        accumulate == 1 ? "" : " and backward pass"));
  }
  return std::min(static_cast<std::size_t>(options.data.batch), images / passes);
}

Transforms choose_transforms(const Program& program, const TrainingOptions& options,
                             DataKind kind) {
  Transforms transforms = program.transforms(kind);
  transforms.training.layout = transforms.validation.layout =
      options.network.channels_last ? Layout::channels_last : Layout::channels_first;
  return transforms;
}

DataSets open(const Program& program, const std::string& path) {
  try {
    return open_data(path);
  } catch (const NoData& error) {
    const std::string& source = program.description.source;
    throw std::runtime_error(source.empty() ? error.what() : error.what() + ("; " + source));
  }
}

Setup prepare(const hora::Context& world, const Program& program, const TrainingOptions& options) {
  if (world.rank() == 0) {
    for (const std::string& path : {options.output.report, options.output.save}) {
      if (!path.empty()) check_writable(path);
    }
  }
  if (!options.validation.only) {
    check_unused({.folder = options.checkpoint.folder, .resume = options.checkpoint.resume});
  }
  const CheckpointOptions& checkpoint = options.checkpoint;
  const bool saves = (checkpoint.per_node ? world.local_rank() : world.rank()) == 0;
  if (saves && !checkpoint.folder.empty() && !options.validation.only) {
    make_folder(checkpoint.folder);
  }
  check_mode(options.distribution.mode, world.size());
  const torch::Device device = choose_device(world, options);
  const Precision precision(device, options.precision);
  DataSets data = open(program, options.data.path);
  keep_first(data, options.data.limit);
  const Transforms transforms = choose_transforms(program, options, data.kind);
  const std::size_t batch = choose_batch(world, options, data.training->size());
  hora::DistributedSampler sampler(
      data.training->size(),
      {.rank = world.rank(),
       .size = world.size(),
       .seed = options.seed,
       .batch = batch * static_cast<std::size_t>(options.distribution.accumulate)});
  std::shared_ptr<Classifier> model =
      make_classifier(world, options, device, data.training->classes().size(), sampler.steps());
  return {std::move(data),
          transforms,
          std::move(sampler),
          batch,
          device,
          precision,
          std::move(model),
          TrainingLog(world.rank() == 0 ? options.output.logs : LogTargets{})};
}

// Collective. Ranks with other numbers of images would make other numbers of steps.
void check_equal_data(const hora::Context& world, const DataSets& data) {
  const auto training = static_cast<std::int64_t>(data.training->size());
  const auto validation = static_cast<std::int64_t>(data.validation->size());
  std::array largest{training, validation, -training, -validation};
  hora::allreduce(world, hora::view(largest.data(), largest.size()),
                  {.name = "images", .op = hora::ReduceOp::max});
  if (largest[0] != -largest[2] || largest[1] != -largest[3]) {
    throw std::runtime_error("ranks have found different data: " + std::to_string(-largest[2]) +
                             " to " + std::to_string(largest[0]) + " training images, " +
                             std::to_string(-largest[3]) + " to " + std::to_string(largest[1]) +
                             " for validation; put the same files on every host");
  }
}

}  // namespace

std::optional<Setup> prepare_everywhere(const hora::Context& world, const Program& program,
                                        const TrainingOptions& options) {
  std::optional<Setup> setup;
  std::string message;
  try {
    setup.emplace(prepare(world, program, options));
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::vector<std::int64_t> failed(static_cast<std::size_t>(world.size()), 0);
  failed[static_cast<std::size_t>(world.rank())] = message.empty() ? 0 : 1;
  hora::allreduce(world, hora::view(failed.data(), world.size()),
                  {.name = "set-up", .op = hora::ReduceOp::sum});
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) {
    check_equal_data(world, setup->data);
    hora::broadcast_parameters(world, *setup->model, /*root=*/0);
    return setup;
  }
  if (first - failed.begin() == world.rank()) {
    std::cerr << program.description.name << ", rank " << world.rank() << ": "
              << hora::printable(message) << std::endl;
  }
  return std::nullopt;
}

}  // namespace vision
