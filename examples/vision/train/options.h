/// The command line of a trainer, and its main(): without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/transform.h"
#include "examples/vision/logs/progress.h"
#include "examples/vision/logs/training_log.h"
#include "examples/vision/models/architectures.h"

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

struct OptimizerSettings {
  std::string name = "sgd";  ///< or "adam", "adamw"
  double learning_rate = 0.1;
  double momentum = 0.9;       ///< of sgd; beta1 of the others
  double weight_decay = 1e-4;  ///< L2 in sgd and adam; decoupled in adamw
  bool nesterov = false;       ///< of sgd
  bool decay_all = false;      ///< false: BatchNorm and biases, a second group, are not decayed
};

/// How the learning rate falls after the warm-up.
enum class Decay { step, cosine, constant };

struct ScheduleOptions {
  Decay decay = Decay::step;
  double step_epochs = 30;  ///< of Decay::step
  double factor = 0.1;      ///< of Decay::step
  /// Epochs in which the rate grows; unset: `warmup_share` of all.
  std::optional<double> warmup_epochs = {};
  double warmup_share = 0;  ///< of all epochs, within [0, 1); no option of the command line
  bool scale = false;       ///< linearly: the rate is right for steps of `base_batch` images
  int base_batch = 0;       ///< 0: those of one rank in one backward pass
};

struct RegularisationOptions {
  double label_smoothing = 0;  ///< within [0, 1)
  double clip_norm = 0;        ///< largest 2-norm of all gradients together; 0: not clipped
};

enum class Mode {
  single,         ///< one device
  data_parallel,  ///< torch::nn::parallel::data_parallel: one process, all GPUs it sees
  distributed,    ///< one process a GPU, or a CPU's share, under horarun
};

/// In what form gradients travel.
enum class GradientCompression { none, float16, bfloat16, top_k, power_sgd };

/// The fate of a step whose loss or gradients hold a NaN or an infinity on any rank.
enum class NonFinite {
  raise,   ///< the training ends, on every rank, with an error that names tensor and rank
  skip,    ///< every rank leaves the step out
  ignore,  ///< nothing is checked
};

/// hora::DistributedOptimizer and what belongs to it.
struct DistributionOptions {
  Mode mode = Mode::distributed;
  int accumulate = 1;  ///< backward passes of one step
  bool sync_batch_norm = false;
  bool zero = false;  ///< each rank keeps its share of the optimizer's state (ZeRO, stage 1)
  bool fused_update = false;  ///< with `zero`: the pass that averages also updates
  GradientCompression compression = GradientCompression::none;
  NonFinite non_finite = NonFinite::raise;
};

/// automatic: the rank's GPU where the job has them, else the CPU.
enum class DeviceChoice { automatic, cpu, cuda };

/// Type of convolutions and matrix products, under autocast; parameters and gradients stay float32.
enum class Amp { off, float16, bfloat16 };

/// As in NVIDIA's Apex; in float16, or bfloat16 where the device has none.
enum class OptLevel {
  O0,  ///< float32
  O1,  ///< autocast
  O2,  ///< convolutions and linear layers in 16 bits; float32 master weights, which are updated
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

struct Transforms {
  TransformOptions training;
  TransformOptions validation;
};

/// A trainer of images, beside its options.
struct Program {
  std::string name;     ///< "cifar10"
  std::string summary;  ///< first line of --help
  std::string data;     ///< what --data takes
  int image_side;       ///< pixels of an image's sides: architectures that need more are refused
  std::string source = {};  ///< where the data can be had: a sentence; empty: nothing is said
  TrainingOptions defaults = {};
  /// For a data set's images; the layout is the options'. Throws std::runtime_error, which says
  /// what is expected, for a data set that the program does not train on.
  std::function<Transforms(DataKind)> transforms = {};
};

/// Prepares on every rank, trains, and writes the report. The exit code: 0; 2 for a wrong command
/// line; 75 (stopped_exit_code) where SIGTERM or SIGUSR1 has ended the training before its last
/// epoch; 1 for any other error, which the lowest rank that has it prints.
int run_program(const Program& program, int argc, char** argv);

/// Options, or where there are none (an error, or --help) what to print and the exit code: 0 for
/// --help, else 2.
struct ParsedOptions {
  std::optional<TrainingOptions> options;
  std::string text;
  int exit_code = 0;
};

/// A default stem is that of ResNets; other architectures get none. Pure; any thread.
ParsedOptions parse_options(const Program& program, int argc, const char* const* argv);

}  // namespace vision
