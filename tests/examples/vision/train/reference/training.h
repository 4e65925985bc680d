/// Trainings whose losses are compared: with Python's, and of several ranks with one process's.
#pragma once

#include <hora/context.h>
#include <hora/torch/learning_rate.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/vision/data/record_sets.h"
#include "examples/vision/data/transform.h"
#include "examples/vision/models/model.h"
#include "examples/vision/train/optimizers.h"

namespace vision::test {

inline constexpr std::size_t formula_classes = 10;

/// As `pixels` of make_losses.py: planes by rows.
std::vector<std::uint8_t> formula_pixels(std::size_t index, std::size_t side);
/// Images 0 .. count-1, with labels 0 to 9 in turn.
PlanarImages formula_data(std::size_t count, int side);
/// Each channel of pixels / 255 minus .5, divided by .5.
Normalisation halves();
/// Images of this size as they are.
TransformOptions unchanged(int side);

struct Training {
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

/// The mean over all ranks of the loss of each step: by the trainers' TrainStep, each rank on its
/// part of every batch, with DistributedOptimizer. Collective.
std::vector<double> losses_of_ranks(const hora::Context& world, const Training& training,
                                    const Dataset& data);

/// The same by LibTorch alone, in one process. With `parts` of more than 1 the batch goes through
/// the network in that many parts, those of as many ranks one after the other, and their gradients
/// are added up in that order.
std::vector<double> losses_of_one_process(const Training& training, const Dataset& data,
                                          int parts = 1);

/// The largest relative difference. Prints, on rank 0, how it grows: of the steps 1, 10, 20, ...
double largest_difference(const hora::Context& world, const std::string& name,
                          const std::vector<double>& losses, const std::vector<double>& expected);

}  // namespace vision::test
