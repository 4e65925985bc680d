#include "examples/vision/train/setup.h"

#include <hora/hora.h>

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
#include "examples/vision/train/output_file.h"

namespace vision {
namespace {

// Batches are smaller where the images are too few for one of all ranks.
hora::DistributedSampler training_sampler(const hora::Context& world, const Arguments& options,
                                          std::size_t images) {
  const std::size_t share = images / static_cast<std::size_t>(world.size());
  if (share < 2) {
    throw std::invalid_argument(std::to_string(images) + " training images in batches of " +
                                std::to_string(options.batch) + " for " +
                                std::to_string(world.size()) +
                                " ranks; expected at least 2 images for each rank, which "
                                "BatchNorm needs");
  }
  return hora::DistributedSampler(
      images, {.rank = world.rank(),
               .size = world.size(),
               .seed = options.seed,
               .batch = std::min(static_cast<std::size_t>(options.batch), share)});
}

Setup prepare(const hora::Context& world, const Program& program, const Arguments& options) {
  if (world.rank() == 0) {
    for (const std::string& path : {options.report, options.save}) {
      if (!path.empty()) check_writable(path);
    }
  }
  const torch::Device device = choose_device(world, options);
  DataSets data = open_data(options.data);
  keep_first(data, options.limit);
  Transforms transforms = program.transforms(data.kind);
  transforms.training.layout = transforms.validation.layout =
      options.channels_last ? Layout::channels_last : Layout::channels_first;
  hora::DistributedSampler sampler = training_sampler(world, options, data.training->size());
  return {std::move(data), transforms, std::move(sampler), device,
          TrainingLog(world.rank() == 0 ? options.logs : LogTargets{})};
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
                                        const Arguments& options) {
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
    return setup;
  }
  if (first - failed.begin() == world.rank()) {
    std::cerr << program.name << ", rank " << world.rank() << ": " << hora::printable(message)
              << std::endl;
  }
  return std::nullopt;
}

}  // namespace vision
