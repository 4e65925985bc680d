/// What the command line of a trainer sets: values with their defaults, without LibTorch.
///
/// A program changes defaults, then parse_options() (option_table.h) fills in and checks what the
/// user has given; TrainingOptions from there need not be checked again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "examples/vision/data/bad_images.h"
#include "examples/vision/logs/log_targets.h"
#include "examples/vision/logs/progress.h"
#include "examples/vision/models/architectures.h"
#include "examples/vision/optim/optimizer_settings.h"
#include "examples/vision/train/choices.h"

namespace vision {

struct DataOptions {
  std::string path = {};  ///< folder or file that open_data() opens
  int batch = 32;         ///< images of one rank in one backward pass, >= 2
  int workers = 1;        ///< threads of a rank that prepare images; 0: the training waits
  std::size_t limit = 0;  ///< images, of training and of validation each; 0: all
  BadImages bad_images = BadImages::raise;
};

struct NetworkOptions {
  std::string architecture = "resnet18";
  std::optional<Stem> stem = {};    ///< of a ResNet, and only there; unset: the architecture's own
  int width = 0;                    ///< ModelOptions::base_width, of a ResNet; 0: its own
  bool zero_init_residual = false;  ///< of a ResNet: ModelOptions::zero_init_residual
  std::string weights = {};         ///< safetensors file to begin with; empty: drawn from the seed
  bool channels_last = false;       ///< images and weights, in memory
};

/// The rate itself is OptimizerSettings::learning_rate. See schedule.h.
struct ScheduleOptions {
  Decay decay = Decay::step;
  double step_epochs = 30;  ///< of Decay::step
  double factor = 0.1;      ///< of Decay::step
  /// Epochs in which the rate grows; unset: `warmup_share` of all.
  std::optional<double> warmup_epochs = {};
  double warmup_share = 0;  ///< of all epochs, within [0, 1); no option of the command line
  /// Linear scaling: the rate is right for steps of `base_batch` images, and grows with them.
  bool scale = false;
  int base_batch = 0;  ///< images of a step; 0: those of one rank in one backward pass
};

struct RegularisationOptions {
  double label_smoothing = 0;  ///< within [0, 1)
  double clip_norm = 0;        ///< largest 2-norm of all gradients together; 0: not clipped
};

/// hora::DistributedOptimizer and what belongs to it.
struct DistributionOptions {
  Mode mode = Mode::distributed;
  int accumulate = 1;  ///< backward passes of one step
  bool sync_batch_norm = false;
  bool zero = false;  ///< each rank keeps its share of the optimizer's state (ZeRO, stage 1)
  bool fused_update = false;  ///< with `zero`: the pass that averages also updates
  bool adasum = false;
  GradientCompression compression = GradientCompression::none;
  double top_k_share = 0.01;  ///< of GradientCompression::top_k, within (0, 1]
  int power_sgd_rank = 2;     ///< of GradientCompression::power_sgd
  double predivide = 1;       ///< gradient_predivide_factor, from 2^-14 to 2^14
  NonFinite non_finite = NonFinite::raise;
};

struct PrecisionOptions {
  Amp amp = Amp::off;
  std::optional<OptLevel> opt_level = {};  ///< unset: O1 where `amp` is on; never O0 there
  std::optional<double> loss_scale = {};   ///< fixed, > 0; unset: dynamic. Not with bf16
};

struct ValidationOptions {
  bool only = false;                            ///< validates once, and trains nothing
  std::optional<double> desired_accuracy = {};  ///< top-1 in percent at which the training ends
  int every = 1;                                ///< epochs; the last one is always validated
};

struct CheckpointOptions {
  std::string folder = {};  ///< empty: none are written
  /// Empty: from the beginning; "auto": `folder`, where it has one; a folder of checkpoints, or one
  /// checkpoint in it: FOLDER/last, FOLDER/previous or FOLDER/best.
  std::string resume = {};
  bool per_node = false;        ///< each node's local rank 0 writes, to a folder of its own
  std::size_t every_steps = 0;  ///< a checkpoint after so many steps, too; 0: after epochs only
};

/// Where results go; empty: nowhere.
struct OutputOptions {
  std::string report = {};  ///< file
  std::string save = {};    ///< file for the trained model
  LogTargets logs = {};
  ProgressStyle progress = ProgressStyle::automatic;
  std::size_t print_freq = 0;  ///< plain lines: every so many steps; 0: every ten seconds
};

struct TrainingOptions {
  int epochs = 90;
  std::uint64_t seed = 1;      ///< draws weights, order of images and augmentation
  bool deterministic = false;  ///< cuDNN's algorithms: where --seed was given
  DeviceChoice device = DeviceChoice::automatic;
  DataOptions data = {};
  NetworkOptions network = {};
  OptimizerSettings optimizer = {};
  ScheduleOptions schedule = {};
  RegularisationOptions regularisation = {};
  DistributionOptions distribution = {};
  PrecisionOptions precision = {};
  ValidationOptions validation = {};
  CheckpointOptions checkpoint = {};
  OutputOptions output = {};
};

}  // namespace vision
