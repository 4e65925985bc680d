/// A trainer from its set-up to its report. run_program() is in options.h.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/types.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/logs/training_log.h"
#include "examples/vision/models/model.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/precision.h"
#include "examples/vision/train/stop_request.h"

namespace vision {

/// Thrown by every rank with the same text, which rank 0 alone prints.
class CommonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Setup {
  DataSets data;
  Transforms transforms;
  /// Samples the training images; its batch is that of one step, of all its backward passes.
  hora::DistributedSampler sampler;
  std::size_t batch;  ///< images of a rank in one backward pass
  torch::Device device;
  Precision precision;
  std::shared_ptr<Classifier> model;  ///< on the device, equal on all ranks
  TrainingLog log;                    ///< of rank 0; the others write nothing
};

/// A line each: data, model, ranks, device, optimizer and gradients, batch.
std::vector<std::string> describe(const hora::Context& world, const TrainingOptions& options,
                                  const Setup& setup);

/// On `device`, with weights drawn from the seed, or on rank 0 with those that the options name. Of
/// another number of classes they leave the last layer as it was drawn, and rank 0 prints that; not
/// with --evaluate. Throws hora::Error where they cannot be read or are another network's.
std::shared_ptr<Classifier> make_classifier(const hora::Context& world,
                                            const TrainingOptions& options,
                                            const torch::Device& device, std::size_t classes,
                                            std::size_t steps_an_epoch);

struct Report {
  double best_accuracy = 0;      ///< validation top-1 of the best epoch, in percent
  double images_per_second = 0;  ///< training images over all ranks, validation left out
  double hidden_share = 0;       ///< of averaging behind backward, 0 .. 1, mean over ranks
  int ranks = 0;
  int nodes = 0;
  std::string data = {};  ///< DataSets::id()
  int epochs = 0;         ///< made, in earlier runs, too
  /// From the training's begin, without the time between runs, to the desired accuracy; unset: not
  /// reached.
  std::optional<double> seconds_to_accuracy = {};
  bool stopped = false;  ///< by a signal, before the training's end; not for a file
};

/// Trains, validates, and saves the model as the options say, or a checkpoint where `stop` ends it;
/// in trainer.cpp. Collective; every rank gets the same accuracy. Throws CommonError where nothing
/// can be resumed.
Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress, StopRequest& stop);

/// Replaces the file by `bytes` through a temporary file beside it. Throws std::system_error naming
/// the path; the old file is then still there.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace vision
