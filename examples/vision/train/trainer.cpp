#include "examples/vision/train/trainer.h"

#include <hora/torch.h>
#include <hora/torch/grad_scaler.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "examples/vision/optim/optimizers.h"
#include "examples/vision/train/data_parallel.h"
#include "examples/vision/train/description.h"
#include "examples/vision/train/distribution.h"
#include "examples/vision/train/epoch_loop.h"
#include "examples/vision/train/epoch_steps.h"
#include "examples/vision/train/output_file.h"
#include "examples/vision/train/train_step.h"
#include "examples/vision/train/training_state.h"
#include "examples/vision/train/validation.h"

namespace vision {
namespace {

std::unique_ptr<DataParallel> make_data_parallel(const Setup& setup, Mode mode) {
  return mode == Mode::data_parallel
             ? std::make_unique<DataParallel>(setup.model, setup.precision, all_gpus())
             : nullptr;
}

class Trainer {
 public:
  Trainer(const hora::Context& world, const TrainingOptions& options, Setup& setup,
          Progress& progress, StopRequest* stop)
      : world_(world),
        options_(options),
        setup_(setup),
        model_(*setup.model),
        progress_(progress),
        stop_(stop),
        wrapped_(make_optimizer(options.optimizer, model_.named_parameters())),
        distributed_(distributed_options(options.distribution)),
        optimizer_(world, *wrapped_, model_.named_parameters(), distributed_),
        scaler_(optimizer_, setup.precision.scaler()),
        finite_(world, model_.named_parameters(),
                finite_check_options(options.distribution, setup.precision.scaler().enabled)),
        data_parallel_(make_data_parallel(setup, options.distribution.mode)),
        step_({.accumulate = options.distribution.accumulate,
               .label_smoothing = options.regularisation.label_smoothing,
               .clip_norm = options.regularisation.clip_norm},
              forward(), optimizer_, scaler_, finite_),
        epochs_(world, options, setup, loader_options(), optimizer_, step_, progress),
        validation_(world, *setup.data.validation, setup.transforms.validation, loader_options(),
                    setup.device, model_, forward()),
        state_(world,
               {.folder = options.checkpoint.folder,
                .resume = options.checkpoint.resume,
                .per_node = options.checkpoint.per_node,
                .every_steps = static_cast<std::int64_t>(options.checkpoint.every_steps)},
               {.model = model_,
                .optimizer = optimizer_,
                .scaler = scaler_,
                .sampler = setup.sampler,
                .hook = distributed_.hook.get()}) {}

  Report run() {
    for (const std::string& line : describe(world_, options_, setup_)) progress_.line(line);
    const std::optional<ResumePoint> resumed = resume();
    setup_.log.run({.ranks = world_.size(),
                    .nodes = world_.cross_size(),
                    .batch = setup_.sampler.options().batch,
                    .epochs = options_.epochs,
                    .steps = setup_.sampler.steps(),
                    .data = setup_.data.id(),
                    .model = options_.network.architecture,
                    .resumed = resumed});
    return options_.validation.only ? evaluate() : train();
  }

 private:
  LoaderOptions loader_options() const {
    const std::string rank = "rank " + std::to_string(world_.rank());
    return {.batch = setup_.batch,
            .workers = options_.data.workers,
            .bad_images = options_.data.bad_images,
            .seed = options_.seed,
            .log = [rank](const std::string& text) {
              std::cerr << rank + ": left out: " + hora::printable(text) + "\n";
            }};
  }

  Forward forward() const {
    return [this](const torch::Tensor& images) {
      return data_parallel_ ? data_parallel_->logits(images)
                            : setup_.precision.logits(model_, images);
    };
  }

  std::optional<ResumePoint> resume() {
    const std::string folder = state_.resume();
    if (folder.empty()) return std::nullopt;
    progress_.line(fmt::format("resumed {} from {}", vision::describe(state_.progress()), folder));
    hora::DistributedSampler sampler = setup_.sampler;
    return ResumePoint{.epochs = state_.epochs(),
                       .steps = EpochSteps(sampler, state_.progress().position).first()};
  }

  Report evaluate() {
    const ValidationResult result = validation_.run(stop_);
    if (result.stopped) {
      progress_.line("stopped by " + stop_->signal());
      Report stopped = report(0);
      stopped.stopped = true;
      return stopped;
    }
    progress_.line(fmt::format("validation {:.2f} % ({} of {} images), top-5 {:.2f} %, in {}",
                               result.top1(), result.top1_correct, result.images, result.top5(),
                               to_minutes(result.seconds)));
    return report(result.top1());
  }

  Report train() {
    const std::optional<double> desired = options_.validation.desired_accuracy;
    const double& best = state_.progress().best_accuracy;
    const auto is_reached = [&] { return desired && best >= *desired; };
    while (state_.epochs() < options_.epochs && !is_reached()) {
      if (!run_epoch(state_.epochs())) return stopped();
    }
    const double seconds = state_.seconds();
    state_.wait();
    Report result = report(best);
    if (is_reached()) {
      result.seconds_to_accuracy = seconds;
      progress_.line(fmt::format("reached {:.2f} % (desired: {:g} %) after epoch {}, in {}", best,
                                 *desired, state_.epochs(), to_minutes(seconds)));
    } else if (desired) {
      progress_.line(
          fmt::format("did not reach the desired {:g} % in {} epochs", *desired, options_.epochs));
    }
    // No step may be left for this run, and one rank averages nothing.
    std::string line = fmt::format("best validation accuracy {:.2f} %, ", result.best_accuracy);
    if (result.images_per_second > 0) {
      line += fmt::format("{:.0f} images/s, ", result.images_per_second);
      if (world_.size() > 1) {
        line += fmt::format("{:.0f} % of the averaging hidden behind backward, ",
                            100 * result.hidden_share);
      }
    }
    progress_.line(line + "trained and validated in " + to_minutes(seconds));
    save();
    return result;
  }

  Report stopped() {
    const bool saved = state_.interrupted();
    progress_.line(fmt::format(
        "stopped by {} {}; {}", stop_->signal(), vision::describe(state_.progress()),
        saved ? "saved to " + options_.checkpoint.folder + ", from which --resume auto goes on"
              : "nothing was saved, for there is no --model-dir"));
    Report result = report(state_.progress().best_accuracy);
    result.stopped = true;
    return result;
  }

  Report report(double accuracy) {
    return {.best_accuracy = accuracy,
            .images_per_second = epochs_.images_per_second(),
            .hidden_share = epochs_.hidden_share(),
            .ranks = world_.size(),
            .nodes = world_.cross_size(),
            .data = setup_.data.id(),
            .epochs = state_.epochs()};
  }

  /// False where the training is to stop.
  bool run_epoch(int epoch) {
    const std::optional<TrainedEpoch> trained = epochs_.run(state_, stop_);
    if (!trained) return false;
    EpochResult logged{.loss = trained->loss};
    std::string validated;
    const bool is_last = epoch + 1 == options_.epochs;
    if (is_last || (epoch + 1) % options_.validation.every == 0) {
      const ValidationResult result = validation_.run(stop_);
      if (result.stopped) return false;
      epochs_.set_validation_seconds(result.seconds);
      logged.top1 = result.top1();
      logged.top5 = result.top5();
      logged.validation_seconds = result.seconds;
      validated =
          fmt::format(" validation {:.2f} % ({} of {} images), top-5 {:.2f} %, best {:.2f} %,",
                      result.top1(), result.top1_correct, result.images, result.top5(),
                      std::max(result.top1(), state_.progress().best_accuracy));
    }
    setup_.log.epoch(logged, std::chrono::system_clock::now());
    state_.epoch_done(logged.top1);
    progress_.line(fmt::format(
        "epoch {}/{}: {},{} {:.0f} images/s, waited for data in {:.1f} % of the time, learning "
        "rate "
        "{:g}",
        epoch + 1, options_.epochs,
        trained->loss ? fmt::format("loss {:.3f}", *trained->loss) : "every step was left out",
        validated, epochs_.images_per_second(), 100 * trained->waiting, trained->learning_rate));
    return true;
  }

  void save() {
    const std::string& path = options_.output.save;
    if (path.empty() || world_.rank() != 0) return;
    const bool is_archive = std::filesystem::path(path).extension() == ".pt";
    if (is_archive) {
      // Through a stream: a file's name would become part of the archive.
      std::ostringstream bytes;
      torch::save(setup_.model, bytes);
      write_file(path, bytes.view());
    } else {
      hora::save_safetensors(path, hora::weights_of(model_));
    }
    progress_.line(fmt::format("saved the model to {}, {}", path,
                               is_archive ? "LibTorch's archive" : "safetensors"));
  }

  const hora::Context& world_;
  const TrainingOptions& options_;
  Setup& setup_;
  Classifier& model_;
  Progress& progress_;
  StopRequest* const stop_;  ///< null: nothing stops it
  std::unique_ptr<torch::optim::Optimizer> wrapped_;
  hora::DistributedOptimizerOptions distributed_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  hora::FiniteCheck finite_;
  std::unique_ptr<DataParallel> data_parallel_;  ///< null in other modes
  TrainStep step_;
  EpochLoop epochs_;
  Validation validation_;
  TrainingState state_;
};

}  // namespace

Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress, StopRequest* stop) {
  return Trainer(world, options, setup, progress, stop).run();
}

}  // namespace vision
