/// What must succeed on every rank before a training begins.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "examples/vision/data/data_sets.h"
#include "examples/vision/logs/training_log.h"
#include "examples/vision/models/model.h"
#include "examples/vision/train/precision.h"
#include "examples/vision/train/program.h"

namespace vision {

struct Setup {
  DataSets data;
  Transforms transforms;
  /// Of the training images; its batch is that of one step, of all its backward passes.
  hora::DistributedSampler sampler;
  std::size_t batch;  ///< images of a rank in one backward pass
  torch::Device device;
  Precision precision;
  std::shared_ptr<Classifier> model;  ///< on the device, equal on all ranks
  TrainingLog log;                    ///< of rank 0; the others write nothing
};

/// Opens the data and what is written to, and makes the network. Where that fails on any rank, the
/// lowest of those says why on standard error, and there is nothing on all ranks: so a file that is
/// missing everywhere is reported once, and one missing on a single host is reported too.
/// Collective. Throws std::runtime_error where ranks have found different data.
std::optional<Setup> prepare_everywhere(const hora::Context& world, const Program& program,
                                        const TrainingOptions& options);

}  // namespace vision
