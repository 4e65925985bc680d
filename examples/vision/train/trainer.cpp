#include "examples/vision/train/trainer.h"

#include <hora/grad_scaler.h>
#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "examples/vision/optim/optimizers.h"
#include "examples/vision/optim/weight_average.h"
#include "examples/vision/train/autocast.h"
#include "examples/vision/train/description.h"
#include "examples/vision/train/distribution.h"
#include "examples/vision/train/epoch_loop.h"
#include "examples/vision/train/output_file.h"
#include "examples/vision/train/train_step.h"
#include "examples/vision/train/training_state.h"
#include "examples/vision/train/validation.h"

namespace vision {
namespace {

std::unique_ptr<WeightAverage> make_average(const Classifier& model, double decay) {
  return decay > 0 ? std::make_unique<WeightAverage>(model, decay) : nullptr;
}

class Trainer {
 public:
  Trainer(const hora::Context& world, const TrainingOptions& options, Setup& setup,
          Progress& progress)
      : world_(world),
        options_(options),
        setup_(setup),
        model_(*setup.model),
        progress_(progress),
        wrapped_(make_optimizer(options.optimizer, model_.named_parameters())),
        distributed_(distributed_options(options.distribution)),
        optimizer_(world, *wrapped_, model_.named_parameters(), distributed_),
        scaler_(optimizer_, {.enabled = options.precision.amp == Amp::float16}),
        finite_(world, model_.named_parameters(),
                finite_check_options(options.distribution, options.precision.amp == Amp::float16)),
        average_(make_average(model_, options.regularisation.ema_decay)),
        step_({.accumulate = options.distribution.accumulate,
               .label_smoothing = options.regularisation.label_smoothing,
               .clip_norm = options.regularisation.clip_norm},
              model_, forward(), optimizer_, scaler_, finite_, average_.get()),
        epochs_(world, options, setup, loader_options(), optimizer_, step_, progress),
        validation_(world, *setup.data.validation, setup.transforms.validation, loader_options(),
                    setup.device, model_, forward(), average_.get()),
        state_(world, {options.checkpoint.folder, options.checkpoint.resume}, model_, optimizer_,
               scaler_, average_.get(), distributed_.hook.get()) {}

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
      const Autocast autocast(setup_.device, options_.precision.amp);
      return model_.forward(images).to(torch::kFloat32);
    };
  }

  std::optional<ResumePoint> resume() {
    const std::string folder = state_.resume();
    if (folder.empty()) return std::nullopt;
    epochs_.resume_after(state_.epochs());
    progress_.line(fmt::format("resumed after epoch {} from {}", state_.epochs(), folder));
    return ResumePoint{.epochs = state_.epochs()};
  }

  Report evaluate() {
    const ValidationResult result = validation_.run();
    progress_.line(fmt::format("validation {:.2f} % ({} of {} images), top-5 {:.2f} %, in {}",
                               result.top1(), result.top1_correct, result.images, result.top5(),
                               to_minutes(result.seconds)));
    return report(result.top1());
  }

  Report train() {
    const auto start = std::chrono::steady_clock::now();
    const std::optional<double> desired = options_.validation.desired_accuracy;
    const auto is_reached = [&] { return desired && state_.best_accuracy() >= *desired; };
    int epoch = state_.epochs();
    while (epoch < options_.epochs && !is_reached()) run_epoch(epoch++);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state_.wait();
    Report result = report(state_.best_accuracy());
    if (is_reached()) {
      result.seconds_to_accuracy = seconds;
      progress_.line(fmt::format("reached {:.2f} % (desired: {:g} %) after epoch {}, in {}",
                                 state_.best_accuracy(), *desired, epoch, to_minutes(seconds)));
    } else if (desired) {
      progress_.line(
          fmt::format("did not reach the desired {:g} % in {} epochs", *desired, options_.epochs));
    }
    progress_.line(fmt::format(
        "best validation accuracy {:.2f} %, {:.0f} images/s, {:.0f} % of the averaging hidden "
        "behind backward, trained and validated in {}",
        result.best_accuracy, result.images_per_second, 100 * result.hidden_share,
        to_minutes(seconds)));
    save();
    return result;
  }

  Report report(double accuracy) {
    return {.best_accuracy = accuracy,
            .images_per_second = epochs_.images_per_second(),
            .hidden_share = average_over_ranks(optimizer_.statistics().hidden_share()),
            .ranks = world_.size(),
            .nodes = world_.cross_size(),
            .data = setup_.data.id(),
            .epochs = state_.epochs()};
  }

  void run_epoch(int epoch) {
    const TrainedEpoch trained = epochs_.run(epoch);
    EpochResult logged{.loss = trained.loss};
    std::string validated;
    const bool is_last = epoch + 1 == options_.epochs;
    if (is_last || (epoch + 1) % options_.validation.every == 0) {
      const ValidationResult result = validation_.run();
      epochs_.set_validation_seconds(result.seconds);
      logged.top1 = result.top1();
      logged.top5 = result.top5();
      logged.validation_seconds = result.seconds;
      validated = fmt::format(" validation {:.2f} % ({} of {} images), top-5 {:.2f} %,",
                              result.top1(), result.top1_correct, result.images, result.top5());
    }
    setup_.log.epoch(logged, std::chrono::system_clock::now());
    state_.epoch_done(logged.top1);
    progress_.line(fmt::format(
        "epoch {}/{}: loss {:.3f},{} {:.0f} images/s, waited for data in {:.1f} % of the time",
        epoch + 1, options_.epochs, trained.loss, validated, epochs_.images_per_second(),
        100 * trained.waiting));
  }

  double average_over_ranks(double value) const {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
    return value;
  }

  void save() {
    const std::string& path = options_.output.save;
    if (path.empty() || world_.rank() != 0) return;
    // Through a stream: a file's name would become part of the archive.
    std::ostringstream bytes;
    if (average_) {
      const auto averaged = average_->apply_to(model_);
      torch::save(setup_.model, bytes);
    } else {
      torch::save(setup_.model, bytes);
    }
    write_file(path, bytes.view());
    progress_.line("saved the model to " + path);
  }

  const hora::Context& world_;
  const TrainingOptions& options_;
  Setup& setup_;
  Classifier& model_;
  Progress& progress_;
  std::unique_ptr<torch::optim::Optimizer> wrapped_;
  hora::DistributedOptimizerOptions distributed_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  hora::FiniteCheck finite_;
  std::unique_ptr<WeightAverage> average_;  ///< null: none is asked for
  TrainStep step_;
  EpochLoop epochs_;
  Validation validation_;
  TrainingState state_;
};

}  // namespace

Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress) {
  return Trainer(world, options, setup, progress).run();
}

}  // namespace vision
