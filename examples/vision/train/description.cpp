#include "examples/vision/train/description.h"

#include <ATen/Parallel.h>
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <cstddef>

#include "examples/vision/train/data_parallel.h"
#include "examples/vision/train/distribution.h"
#include "examples/vision/train/model.h"

namespace vision {
namespace {

std::string ranks_line(const hora::Context& world) {
  std::string nodes;
  for (int node = 0; node < world.cross_size(); ++node) {
    nodes += (node == 0 ? "" : " + ") + std::to_string(world.ranks_of_node(node).size());
  }
  return fmt::format("ranks: {} on {} node{} ({}), {} thread{} each", world.size(),
                     world.cross_size(), world.cross_size() == 1 ? "" : "s", nodes,
                     at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s");
}

std::string device_line(const TrainingOptions& options, const Setup& setup) {
  std::string devices = setup.device.str();
  if (options.distribution.mode == Mode::data_parallel) {
    devices += fmt::format(" and {} more (data-parallel)", all_gpus().size() - 1);
  }
  return fmt::format("device: {}, {}{}", devices, setup.precision.describe(),
                     options.network.channels_last ? ", channels last" : "");
}

std::string optimizer_line(const TrainingOptions& options) {
  const RegularisationOptions& regularisation = options.regularisation;
  std::string text = fmt::format("optimizer: {}, gradients {}", options.optimizer.name,
                                 describe(options.distribution));
  if (options.distribution.sync_batch_norm) text += ", BatchNorm over all ranks";
  if (regularisation.clip_norm > 0)
    text += fmt::format(", clipped to {:g}", regularisation.clip_norm);
  if (regularisation.label_smoothing > 0) {
    text += fmt::format(", labels smoothed by {:g}", regularisation.label_smoothing);
  }
  return text;
}

std::string batch_line(const hora::Context& world, const TrainingOptions& options,
                       const Setup& setup) {
  const std::size_t a_rank = setup.sampler.options().batch;
  const int accumulate = options.distribution.accumulate;
  const std::string cut =
      setup.batch < static_cast<std::size_t>(options.data.batch)
          ? fmt::format(" (--batch {} is more than the images are enough for)", options.data.batch)
          : "";
  return fmt::format("batch: {}{} a rank{}, {} in all; {} epochs of {} steps; seed {}",
                     accumulate > 1 ? fmt::format("{} x ", accumulate) : "", setup.batch, cut,
                     a_rank * static_cast<std::size_t>(world.size()), options.epochs,
                     setup.sampler.steps(), options.seed);
}

}  // namespace

std::vector<std::string> describe(const hora::Context& world, const TrainingOptions& options,
                                  const Setup& setup) {
  const DataSets& data = setup.data;
  std::vector<std::string> lines{
      fmt::format("data: {}, {} training and {} validation images from {}", data.training->title(),
                  data.training->size(), data.validation->size(), options.data.path),
      "model: " + describe(*setup.model),
      ranks_line(world),
      device_line(options, setup),
      optimizer_line(options),
      batch_line(world, options, setup)};
  for (const std::string& note : data.notes) lines.push_back(hora::printable(note));
  return lines;
}

}  // namespace vision
