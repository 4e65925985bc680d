/// What is measured of one step of a training.
#pragma once

#include <cstddef>
#include <optional>

namespace vision {

/// Times are rank 0's, in seconds; losses and accuracies are of rank 0's batch.
struct TrainingStep {
  int epoch = 1;  ///< from 1
  int epochs = 1;
  int ranks = 1;
  std::size_t step = 1;  ///< of this epoch, from 1
  std::size_t steps = 1;
  double loss = 0;
  std::optional<double> top1 = {};  ///< percent
  std::optional<double> top5 = {};
  double learning_rate = 0;
  double images_per_second = 0;  ///< over all ranks
  double seconds = 0;            ///< of the whole step
  double data_seconds = 0;       ///< of these, waiting for data
  double exposed_seconds = 0;    ///< of these, waiting for averages that backward did not hide
  double seconds_left = 0;       ///< of all epochs
  std::optional<double> gpu_bytes = {};  ///< most memory that tensors on rank 0's GPU have taken
};

}  // namespace vision
