#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "examples/vision/train/optimizers.h"
#include "examples/vision/train/program.h"
#include "examples/vision/train/steps.h"
#include "examples/vision/train/training_state.h"

namespace vision {
namespace {

LoaderOptions loader_options(const TrainingOptions& options, const Setup& setup, int rank) {
  return {.batch = setup.batch,
          .workers = options.data.workers,
          .bad_images = options.data.bad_images,
          .seed = options.seed,
          .log = [rank](const std::string& text) {
            std::cerr << fmt::format("rank {}: left out: {}\n", rank, hora::printable(text));
          }};
}

Forward make_forward(const TrainingOptions& options, const Setup& setup) {
  if (options.distribution.mode == Mode::data_parallel) {
    return [&setup](const torch::Tensor& images) {
      return data_parallel_logits(setup.model, setup.precision, images);
    };
  }
  return [&setup](const torch::Tensor& images) {
    return setup.precision.logits(*setup.model, images);
  };
}

std::int64_t images_a_step(const hora::DistributedSampler& sampler) {
  return static_cast<std::int64_t>(sampler.options().batch) * sampler.options().size;
}

class Trainer {
 public:
  Trainer(const hora::Context& world, const TrainingOptions& options, Setup& setup,
          Progress& progress, StopRequest& stop)
      : world_(world),
        options_(options),
        setup_(setup),
        progress_(progress),
        stop_(stop),
        loader_(loader_options(options, setup, world.rank())),
        forward_(make_forward(options, setup)),
        wrapped_(make_optimizer(options.optimizer, setup.model->named_parameters())),
        distributed_(distributed_options(options.distribution)),
        optimizer_(world, *wrapped_, setup.model->named_parameters(), distributed_),
        scaler_(optimizer_, setup.precision.scaler()),
        finite_(world, setup.model->named_parameters(),
                finite_check_options(options.distribution, setup.precision.scaler().enabled)),
        sampler_(setup.sampler),
        schedule_(learning_rate_options(options, images_a_step(setup.sampler),
                                        static_cast<std::int64_t>(setup.sampler.steps())),
                  static_cast<std::int64_t>(setup.sampler.steps())),
        batches_(*setup.data.training, setup.transforms.training, loader_, setup.device),
        validation_(world, *setup.data.validation, setup.transforms.validation, loader_,
                    setup.device, *setup.model, forward_),
        state_(world, options.checkpoint, *setup.model, optimizer_, scaler_, setup.sampler,
               distributed_.hook.get()) {}

  Report run() {
    for (const std::string& line : describe(world_, options_, setup_)) progress_.line(line);
    std::optional<ResumePoint> resumed;
    if (const std::string folder = state_.resume(); !folder.empty()) {
      const TrainingProgress& done = state_.progress();
      progress_.line(fmt::format("resumed {} from {}", vision::describe(done), folder));
      resumed = {.epochs = state_.epochs(), .steps = EpochSteps(sampler_, done.position).first()};
    }
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
  Report evaluate() {
    const ValidationResult result = validation_.run(stop_);
    if (result.stopped) {
      progress_.line("stopped by " + stop_.signal());
      return report(0, /*stopped=*/true);
    }
    progress_.line(fmt::format("validation {:.2f} % ({} of {} images), top-5 {:.2f} %, in {}",
                               result.top1, result.top1_correct, result.images, result.top5,
                               to_minutes(result.seconds)));
    return report(result.top1);
  }

  Report train() {
    const std::optional<double> desired = options_.validation.desired_accuracy;
    const double& best = state_.progress().best_accuracy;
    const auto is_reached = [&] { return desired && best >= *desired; };
    while (state_.epochs() < options_.epochs && !is_reached()) {
      if (!run_epoch()) return stopped();
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
        "stopped by {} {}; {}", stop_.signal(), vision::describe(state_.progress()),
        saved ? "saved to " + options_.checkpoint.folder + ", from which --resume auto goes on"
              : "nothing was saved, for there is no --model-dir"));
    return report(state_.progress().best_accuracy, /*stopped=*/true);
  }

  Report report(double accuracy, bool stopped = false) {
    return {.best_accuracy = accuracy,
            .images_per_second = images_per_second(),
            .hidden_share = average_over_ranks(optimizer_.statistics().hidden_share()),
            .ranks = world_.size(),
            .nodes = world_.cross_size(),
            .data = setup_.data.id(),
            .epochs = state_.epochs(),
            .stopped = stopped};
  }

  /// Trains in the state's epoch, from its position on, and validates; false where told to stop.
  bool run_epoch() {
    const int epoch = state_.epochs();
    const double seconds_before = training_seconds_;
    const std::optional<double> learning_rate = make_steps(epoch);
    if (!learning_rate) return false;
    const double seconds = training_seconds_ - seconds_before;  // 0: only validation was left
    const TrainingProgress& trained = state_.progress();
    EpochResult result;
    // Means over all ranks; without the steps left out, which is decided alike on all ranks.
    const double images = average_over_ranks(trained.images);
    const double loss = average_over_ranks(trained.loss);
    if (images > 0) result.loss = loss / images;
    const double waiting = average_over_ranks(seconds > 0 ? batches_.waited() / seconds : 0);
    std::string validated;
    if (epoch + 1 == options_.epochs || (epoch + 1) % options_.validation.every == 0) {
      const ValidationResult validation = validation_.run(stop_);
      if (validation.stopped) return false;
      result.top1 = validation.top1;
      result.top5 = validation.top5;
      result.validation_seconds = validation_seconds_ = validation.seconds;
      validated =
          fmt::format(" validation {:.2f} % ({} of {} images), top-5 {:.2f} %, best {:.2f} %,",
                      validation.top1, validation.top1_correct, validation.images, validation.top5,
                      std::max(validation.top1, trained.best_accuracy));
    }
    setup_.log.epoch(result, std::chrono::system_clock::now());
    state_.epoch_done(result.top1);
    progress_.line(fmt::format(
        "epoch {}/{}: {},{} {:.0f} images/s, waited for data in {:.1f} % of the time, learning "
        "rate {:g}",
        epoch + 1, options_.epochs,
        result.loss ? fmt::format("loss {:.3f}", *result.loss) : "every step was left out",
        validated, images_per_second(), 100 * waiting, *learning_rate));
    return true;
  }

  /// The last step's learning rate; nothing where the training is told to stop.
  std::optional<double> make_steps(int epoch) {
    setup_.model->train();
    const EpochSteps steps(sampler_, state_.progress().position);
    // Counted in this run's steps, which may take more or fewer images than those of the run
    // before.
    const std::size_t steps_before = static_cast<std::size_t>(epoch) * setup_.sampler.steps();
    const auto images = static_cast<std::int64_t>(sampler_.options().batch);
    const double seconds_before = training_seconds_;
    const auto start = std::chrono::steady_clock::now();
    batches_.start(
        static_cast<std::uint64_t>(epoch), steps.samples(),
        steps.first_of_samples() * static_cast<std::size_t>(options_.distribution.accumulate));
    for (std::size_t step = steps.first(); step < steps.end(); ++step) {
      const auto step_start = std::chrono::steady_clock::now();
      const double rate =
          schedule_.apply(optimizer_, static_cast<std::int64_t>(steps_before + step));
      StepResult result = train_step(options_, forward_, batches_, optimizer_, scaler_, finite_);
      ++steps_done_;
      training_seconds_ = seconds_before + seconds_since(start);
      result.epoch = epoch + 1;
      result.epochs = options_.epochs;
      result.ranks = world_.size();
      result.step = step + 1;
      result.steps = steps.end();
      result.learning_rate = rate;
      result.images_per_second = images_per_second();
      result.seconds_left = seconds_left(epoch, steps.end() - step - 1);
      result.gpu_bytes = gpu_peak_bytes(setup_.device);
      if (!result.made) progress_.line(left_out(result));
      result.seconds = seconds_since(step_start);
      progress_.update(result, std::chrono::steady_clock::now());
      setup_.log.step(result, std::chrono::system_clock::now());
      const bool counts = !result.non_finite;
      state_.step_done(steps.after(step), counts ? result.loss : 0, counts ? images : 0);
      if (stop_.poll()) return std::nullopt;
    }
    return schedule_.rate(static_cast<std::int64_t>(steps_before + steps.end()) - 1);
  }

  std::string left_out(const StepResult& step) const {
    const std::string reason =
        step.non_finite
            ? step.non_finite->text()
            : fmt::format("gradient overflow; loss scale {} {:g}",
                          options_.precision.loss_scale ? "stays" : "is now", step.loss_scale);
    return fmt::format("epoch {}/{}, step {}/{}: left out on all ranks: {}", step.epoch,
                       step.epochs, step.step, step.steps, reason);
  }

  double seconds_left(int epoch, std::size_t steps_of_epoch) const {
    const auto epochs_after = static_cast<std::size_t>(options_.epochs - epoch - 1);
    return training_seconds_ / static_cast<double>(steps_done_) *
               static_cast<double>(epochs_after * setup_.sampler.steps() + steps_of_epoch) +
           validation_seconds_ * (options_.epochs - epoch);
  }

  /// Over all ranks, of this run, validation left out.
  double images_per_second() const {
    const std::int64_t images = steps_done_ * images_a_step(setup_.sampler);
    return images > 0 ? static_cast<double>(images) / training_seconds_ : 0;
  }

  double average_over_ranks(double value) const {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
    return value;
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
      hora::save_safetensors(path, hora::weights_of(*setup_.model));
    }
    progress_.line(fmt::format("saved the model to {}, {}", path,
                               is_archive ? "LibTorch's archive" : "safetensors"));
  }

  const hora::Context& world_;
  const TrainingOptions& options_;
  Setup& setup_;
  Progress& progress_;
  StopRequest& stop_;
  const LoaderOptions loader_;
  const Forward forward_;
  std::unique_ptr<torch::optim::Optimizer> wrapped_;
  hora::DistributedOptimizerOptions distributed_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  hora::FiniteCheck finite_;
  hora::DistributedSampler sampler_;
  hora::LearningRateSchedule schedule_;
  Batches batches_;
  Validation validation_;
  TrainingState state_;
  std::int64_t steps_done_ = 0;    ///< in this run
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace

Report train(const hora::Context& world, const TrainingOptions& options, Setup& setup,
             Progress& progress, StopRequest& stop) {
  return Trainer(world, options, setup, progress, stop).run();
}

}  // namespace vision
