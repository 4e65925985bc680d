#include "examples/vision/train/trainer.h"

#include <hora/grad_scaler.h>
#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <sstream>

#include "examples/vision/train/autocast.h"
#include "examples/vision/train/batches.h"
#include "examples/vision/train/model.h"
#include "examples/vision/train/output_file.h"
#include "examples/vision/train/train_step.h"
#include "examples/vision/train/training_state.h"
#include "examples/vision/train/validation.h"

namespace vision {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Linear warm-up for a sixth of all steps, then half a cosine down to 0.
hora::LearningRateSchedule make_schedule(const Arguments& options, std::size_t steps_an_epoch) {
  const auto steps = static_cast<std::int64_t>(steps_an_epoch);
  const auto warmup_steps = static_cast<double>(steps * options.epochs / 6);
  return {{.rate = options.learning_rate,
           .warmup_start = options.learning_rate / (warmup_steps + 1),
           .warmup_epochs = warmup_steps / static_cast<double>(steps),
           .decay = hora::LearningRateDecay::cosine,
           .epochs = static_cast<double>(options.epochs)},
          steps};
}

class Trainer {
 public:
  Trainer(const hora::Context& world, const Arguments& options, Setup& setup, Progress& progress)
      : world_(world),
        options_(options),
        setup_(setup),
        sampler_(setup.sampler),
        schedule_(make_schedule(options, setup.sampler.steps())),
        progress_(progress),
        model_(make_classifier(world, options, setup.device, setup.data.training->classes().size(),
                               setup.sampler.steps())),
        batches_(*setup.data.training, setup.transforms.training, loader_options(), setup.device),
        sgd_(model_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                       .momentum(options.momentum)
                                       .weight_decay(options.weight_decay)),
        optimizer_(world, sgd_, model_->named_parameters()),
        scaler_(optimizer_, {.enabled = options.amp == Amp::float16}),
        step_({}, *model_, forward(), optimizer_, scaler_, /*average=*/nullptr),
        validation_(world, *setup.data.validation, setup.transforms.validation, loader_options(),
                    setup.device, *model_, forward(), /*average=*/nullptr),
        state_(world, {options.model_dir, options.resume}, *model_, optimizer_, scaler_) {
    hora::broadcast_parameters(world, *model_, /*root=*/0);
  }

  Report run() {
    describe();
    const auto start = Clock::now();
    resume();
    for (int epoch = state_.epochs(); epoch < options_.epochs; ++epoch) run_epoch(epoch);
    state_.wait();
    const Report report{.best_accuracy = state_.best_accuracy(),
                        .images_per_second = images_per_second(),
                        .hidden_share = average_over_ranks(optimizer_.statistics().hidden_share()),
                        .ranks = world_.size(),
                        .nodes = world_.cross_size(),
                        .data = setup_.data.id(),
                        .epochs = options_.epochs};
    progress_.line(fmt::format(
        "best validation accuracy {:.2f} %, {:.0f} images/s, {:.0f} % of the averaging hidden "
        "behind backward, trained and validated in {}",
        report.best_accuracy, report.images_per_second, 100 * report.hidden_share,
        to_minutes(seconds_since(start))));
    save();
    return report;
  }

 private:
  struct TrainedEpoch {
    double loss;     ///< mean over all ranks
    double waiting;  ///< share of the time in which a rank had no data, mean over ranks
  };

  LoaderOptions loader_options() const {
    return {.batch = sampler_.options().batch, .workers = options_.workers, .seed = options_.seed};
  }

  Forward forward() const {
    return [this](const torch::Tensor& images) {
      const Autocast autocast(setup_.device, options_.amp);
      return model_->forward(images).to(torch::kFloat32);
    };
  }

  void describe() {
    std::string nodes;
    for (int node = 0; node < world_.cross_size(); ++node) {
      nodes += (node == 0 ? "" : " + ") + std::to_string(world_.ranks_of_node(node).size());
    }
    const DataSets& data = setup_.data;
    progress_.line(fmt::format("data: {}, {} training and {} validation images from {}",
                               data.training->title(), data.training->size(),
                               data.validation->size(), options_.data));
    progress_.line("model: " + vision::describe(*model_));
    progress_.line(fmt::format("ranks: {} on {} node{} ({}), {} thread{} each", world_.size(),
                               world_.cross_size(), world_.cross_size() == 1 ? "" : "s", nodes,
                               torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s"));
    constexpr std::array precisions{"float32", "float16 (autocast)", "bfloat16 (autocast)"};
    progress_.line(fmt::format("device: {}, {}{}", setup_.device.str(),
                               precisions[static_cast<std::size_t>(options_.amp)],
                               options_.channels_last ? ", channels last" : ""));
    progress_.line(fmt::format("batch: {} a rank, {} in all; {} epochs of {} steps; seed {}",
                               sampler_.options().batch, images_a_step(), options_.epochs,
                               sampler_.steps(), options_.seed));
    setup_.log.run({.ranks = world_.size(),
                    .nodes = world_.cross_size(),
                    .batch = sampler_.options().batch,
                    .epochs = options_.epochs,
                    .steps = sampler_.steps(),
                    .data = data.id(),
                    .model = options_.architecture});
  }

  std::size_t images_a_step() const {
    return sampler_.options().batch * static_cast<std::size_t>(world_.size());
  }
  double images_per_second() const {
    const std::size_t steps = steps_done_ - resumed_steps_;
    return steps > 0 ? static_cast<double>(steps * images_a_step()) / training_seconds_ : 0;
  }

  void resume() {
    const std::string folder = state_.resume();
    if (folder.empty()) return;
    resumed_steps_ = static_cast<std::size_t>(state_.epochs()) * sampler_.steps();
    steps_done_ = resumed_steps_;
    progress_.line(fmt::format("resumed after epoch {} from {}", state_.epochs(), folder));
  }

  void run_epoch(int epoch) {
    const TrainedEpoch trained = train_epoch(epoch);
    const ValidationResult result = validation_.run();
    validation_seconds_ = result.seconds;
    setup_.log.epoch({.loss = trained.loss,
                      .top1 = result.top1(),
                      .top5 = result.top5(),
                      .validation_seconds = result.seconds},
                     std::chrono::system_clock::now());
    state_.epoch_done(result.top1());
    progress_.line(fmt::format(
        "epoch {}/{}: loss {:.3f}, validation {:.2f} % ({} of {} images), {:.0f} images/s, "
        "waited for data in {:.1f} % of the time",
        epoch + 1, options_.epochs, trained.loss, result.top1(), result.top1_correct, result.images,
        images_per_second(), 100 * trained.waiting));
  }

  TrainedEpoch train_epoch(int epoch) {
    model_->train();
    const auto number = static_cast<std::uint64_t>(epoch);
    sampler_.set_epoch(number);
    const double seconds_before = training_seconds_;
    const auto start = Clock::now();
    batches_.start(number, samples_of(sampler_));
    double sum_of_losses = 0;
    for (std::size_t step = 0; step < sampler_.steps(); ++step) {
      const auto step_start = Clock::now();
      const double rate = schedule_.apply(optimizer_, static_cast<std::int64_t>(steps_done_));
      const StepResult result = step_.run(batches_);
      ++steps_done_;
      training_seconds_ = seconds_before + seconds_since(start);
      sum_of_losses += result.loss;
      const TrainingStep measured{.epoch = epoch + 1,
                                  .epochs = options_.epochs,
                                  .step = step + 1,
                                  .steps = sampler_.steps(),
                                  .loss = result.loss,
                                  .top1 = result.top1,
                                  .top5 = result.top5,
                                  .learning_rate = rate,
                                  .images_per_second = images_per_second(),
                                  .seconds = seconds_since(step_start),
                                  .data_seconds = result.data_seconds,
                                  .exposed_seconds = result.exposed_seconds,
                                  .seconds_left = seconds_left(epoch)};
      progress_.update(measured, Clock::now());
      setup_.log.step(measured, std::chrono::system_clock::now());
    }
    const double seconds = training_seconds_ - seconds_before;
    return {.loss = average_over_ranks(sum_of_losses / static_cast<double>(sampler_.steps())),
            .waiting = average_over_ranks(batches_.waited() / seconds)};
  }

  double seconds_left(int epoch) const {
    const std::size_t all_steps = sampler_.steps() * static_cast<std::size_t>(options_.epochs);
    return training_seconds_ / static_cast<double>(steps_done_ - resumed_steps_) *
               static_cast<double>(all_steps - steps_done_) +
           validation_seconds_ * (options_.epochs - epoch);
  }

  double average_over_ranks(double value) const {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
    return value;
  }

  void save() {
    if (options_.save.empty() || world_.rank() != 0) return;
    // Through a stream: a file's name would become part of the archive.
    std::ostringstream bytes;
    torch::save(model_, bytes);
    write_file(options_.save, bytes.view());
    progress_.line("saved the model to " + options_.save);
  }

  const hora::Context& world_;
  const Arguments& options_;
  Setup& setup_;
  hora::DistributedSampler sampler_;
  hora::LearningRateSchedule schedule_;
  Progress& progress_;
  std::shared_ptr<Classifier> model_;
  Batches batches_;
  torch::optim::SGD sgd_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  TrainStep step_;
  Validation validation_;
  TrainingState state_;
  std::size_t steps_done_ = 0;
  std::size_t resumed_steps_ = 0;  ///< of these, by an earlier run
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace

Report train(const hora::Context& world, const Arguments& options, Setup& setup,
             Progress& progress) {
  return Trainer(world, options, setup, progress).run();
}

}  // namespace vision
