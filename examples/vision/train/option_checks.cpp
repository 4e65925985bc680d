#include "examples/vision/train/option_checks.h"

#include <CLI/Error.hpp>
#include <string>
#include <variant>

#include "examples/vision/train/option_values.h"

namespace vision {
namespace {

class Checks {
 public:
  Checks(const CLI::App& app, TrainingOptions& options) : app_(app), options_(options) {}

  void run() {
    network();
    optimizer();
    schedule();
    distribution();
    precision();
    checkpoints();
  }

 private:
  bool given(const char* name) const { return app_.count(name) > 0; }

  static void refuse_if(bool wrong, const char* option, const std::string& reason) {
    if (wrong) throw CLI::ValidationError(option, reason);
  }

  void network() {
    NetworkOptions& network = options_.network;
    const bool resnet =
        std::holds_alternative<ResNetShape>(find_architecture(network.architecture).shape);
    refuse_if(given("--stem") && !resnet, "--stem",
              network.architecture + " has none; only ResNets have");
    refuse_if(network.width > 0 && !resnet, "--width",
              network.architecture + " has a fixed one; only ResNets have a choice");
    refuse_if(network.zero_init_residual && !resnet, "--zero-init-residual",
              network.architecture + " has no residual blocks; only ResNets have");
    if (!resnet) network.stem.reset();
    const std::string& resume = options_.checkpoint.resume;
    refuse_if(!network.weights.empty() && !resume.empty() && resume != "auto", "--weights",
              "--resume " + resume + " loads weights, too; give one of them, or --resume auto");
  }

  void optimizer() {
    const OptimizerSettings& optimizer = options_.optimizer;
    refuse_if(optimizer.nesterov && optimizer.name != "sgd", "--nesterov",
              optimizer.name + " has no such momentum; only sgd has");
    refuse_if(optimizer.nesterov && optimizer.momentum == 0, "--nesterov",
              "needs --momentum above 0");
  }

  void schedule() {
    const ScheduleOptions& schedule = options_.schedule;
    for (const char* option : {"--lr-step-epochs", "--lr-gamma"}) {
      refuse_if(given(option) && schedule.decay != Decay::step, option, "needs --lr-schedule step");
    }
    refuse_if(given("--base-batch") && !schedule.scale, "--base-batch", "needs --scale-lr");
    refuse_if(schedule.warmup_epochs.value_or(0) >= options_.epochs, "--warmup-epochs",
              to_text(schedule.warmup_epochs.value_or(0)) +
                  " epochs; expected fewer than --epochs " + std::to_string(options_.epochs));
  }

  void distribution() {
    const DistributionOptions& distribution = options_.distribution;
    const OptimizerKind& kind = optimizer_kind(options_.optimizer.name);
    const bool compressed = distribution.compression != GradientCompression::none;
    const bool hook = distribution.compression == GradientCompression::top_k ||
                      distribution.compression == GradientCompression::power_sgd;
    refuse_if(distribution.zero && !kind.elementwise, "--zero",
              std::string(kind.name) + " needs whole layers, of which a rank has shares; take " +
                  "sgd, adam or adamw, or leave --zero out");
    refuse_if(distribution.zero && compressed, "--zero",
              "averages uncompressed; leave out "
              "--compression");
    fused_update();
    refuse_if(distribution.adasum && distribution.zero, "--adasum",
              "does not go with --zero; leave one of them out");
    refuse_if(distribution.adasum && distribution.predivide != 1, "--adasum",
              "does not average; leave out --gradient-predivide-factor");
    refuse_if(distribution.adasum && hook, "--adasum",
              "goes with --compression none, fp16 or bf16 only");
    refuse_if(distribution.predivide != 1 && hook, "--gradient-predivide-factor",
              "goes with --compression none, fp16 or bf16 only");
    refuse_if(given("--top-k-share") && distribution.compression != GradientCompression::top_k,
              "--top-k-share", "needs --compression top-k");
    refuse_if(
        given("--powersgd-rank") && distribution.compression != GradientCompression::power_sgd,
        "--powersgd-rank", "needs --compression powersgd");
    refuse_if(distribution.sync_batch_norm && distribution.mode == Mode::data_parallel, "--sync-bn",
              "averages over processes, and --mode data-parallel has one; take --mode distributed");
  }

  /// The averages are never there as such: nothing but the update can have them.
  void fused_update() {
    if (!options_.distribution.fused_update) return;
    const char* const option = "--fused-update";
    refuse_if(!options_.distribution.zero, option, "needs --zero");
    refuse_if(options_.regularisation.clip_norm > 0, option,
              "does not go with --clip-norm, which needs the averages before the update; leave one "
              "of them out");
    refuse_if(scales_loss(), option,
              "does not go with a scaled loss (float16), whose gradients are looked at before the "
              "update; take --amp bf16, or leave it out");
    refuse_if(options_.device == DeviceChoice::cuda, option,
              "is for the CPU, and --device is cuda; leave it out");
  }

  /// Gradients of float16, or of what O1 and O2 take by themselves.
  bool scales_loss() const {
    const PrecisionOptions& precision = options_.precision;
    return precision.amp == Amp::float16 ||
           (precision.amp == Amp::off &&
            precision.opt_level.value_or(OptLevel::O0) != OptLevel::O0);
  }

  void precision() {
    const PrecisionOptions& precision = options_.precision;
    refuse_if(precision.opt_level == OptLevel::O0 && precision.amp != Amp::off, "--opt-level",
              "O0 is float32, and --amp names a 16-bit type; take O1 or O2");
    refuse_if(precision.loss_scale && !scales_loss(), "--loss-scale",
              "needs float16: --amp fp16, or --opt-level O1 or O2 without --amp bf16");
  }

  void checkpoints() {
    const CheckpointOptions& checkpoint = options_.checkpoint;
    options_.output.logs.append = !checkpoint.resume.empty();
    refuse_if(checkpoint.resume == "auto" && checkpoint.folder.empty(), "--resume",
              "auto needs --model-dir");
    refuse_if(checkpoint.per_node && checkpoint.folder.empty(), "--checkpoint-per-node",
              "needs --model-dir");
    refuse_if(checkpoint.every_steps > 0 && checkpoint.folder.empty(), "--checkpoint-every",
              "needs --model-dir");
    refuse_if(
        options_.validation.only && options_.network.weights.empty() && checkpoint.resume.empty(),
        "--evaluate", "needs weights: --weights FILE, or --resume");
  }

  const CLI::App& app_;
  TrainingOptions& options_;
};

}  // namespace

void check_combinations(const CLI::App& app, TrainingOptions& options) {
  Checks(app, options).run();
}

}  // namespace vision
