#include "examples/vision/train/epoch_loop.h"

#include <hora/hora.h>
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdint>

#include "examples/vision/train/epoch_steps.h"
#include "examples/vision/train/gpu_memory.h"
#include "examples/vision/train/schedule.h"

namespace vision {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::int64_t images_a_step(const hora::DistributedSampler& sampler) {
  return static_cast<std::int64_t>(sampler.options().batch) * sampler.options().size;
}

}  // namespace

EpochLoop::EpochLoop(const hora::Context& world, const TrainingOptions& options, Setup& setup,
                     const LoaderOptions& loader, hora::DistributedOptimizer& optimizer,
                     TrainStep& step, Progress& progress)
    : world_(world),
      options_(options),
      setup_(setup),
      sampler_(setup.sampler),
      schedule_(make_schedule(options, images_a_step(setup.sampler),
                              static_cast<std::int64_t>(setup.sampler.steps()))),
      batches_(*setup.data.training, setup.transforms.training, loader, setup.device),
      optimizer_(optimizer),
      step_(step),
      progress_(progress) {}

std::optional<TrainedEpoch> EpochLoop::run(TrainingState& state, StopRequest* stop) {
  setup_.model->train();
  const int epoch = state.epochs();
  const EpochSteps steps(sampler_, state.progress().position);
  // Of this run's, which may take more or fewer images than those of the run before.
  const std::size_t steps_before = static_cast<std::size_t>(epoch) * setup_.sampler.steps();
  const auto images = static_cast<std::int64_t>(sampler_.options().batch);
  const double seconds_before = training_seconds_;
  const auto start = Clock::now();
  batches_.start(
      steps.epoch(), steps.samples(),
      steps.first_of_samples() * static_cast<std::size_t>(options_.distribution.accumulate));
  for (std::size_t step = steps.first(); step < steps.end(); ++step) {
    const auto step_start = Clock::now();
    const double rate = schedule_.apply(optimizer_, static_cast<std::int64_t>(steps_before + step));
    const StepResult result = step_.run(batches_);
    ++steps_done_;
    training_seconds_ = seconds_before + seconds_since(start);
    if (!result.made) {
      progress_.line(fmt::format("epoch {}/{}, step {}/{}: left out on all ranks: {}", epoch + 1,
                                 options_.epochs, step + 1, steps.end(),
                                 result.non_finite
                                     ? result.non_finite->text()
                                     : setup_.precision.describe_overflow(result.loss_scale)));
    }
    TrainingStep shown = measured(epoch, step + 1, steps.end(), result);
    shown.learning_rate = rate;
    shown.seconds = seconds_since(step_start);
    progress_.update(shown, Clock::now());
    setup_.log.step(shown, std::chrono::system_clock::now());
    const bool counts = !result.non_finite;
    state.step_done(steps.after(step), counts ? result.loss : 0, counts ? images : 0);
    if (stop != nullptr && stop->poll()) return std::nullopt;
  }
  // None where the epoch was interrupted before its validation.
  const double seconds = training_seconds_ - seconds_before;
  const TrainingProgress& progress = state.progress();
  // Which steps are left out is decided alike on all ranks.
  return TrainedEpoch{
      .loss = progress.images > 0
                  ? std::optional(average_over_ranks(progress.loss / progress.images))
                  : std::nullopt,
      .waiting = average_over_ranks(seconds > 0 ? batches_.waited() / seconds : 0),
      .learning_rate = schedule_.rate(static_cast<std::int64_t>(steps_before + steps.end()) - 1)};
}

double EpochLoop::images_per_second() const {
  const std::size_t images = steps_done_ * static_cast<std::size_t>(images_a_step(sampler_));
  return images > 0 ? static_cast<double>(images) / training_seconds_ : 0;
}

double EpochLoop::hidden_share() const {
  return average_over_ranks(optimizer_.statistics().hidden_share());
}

TrainingStep EpochLoop::measured(int epoch, std::size_t step, std::size_t end,
                                 const StepResult& result) const {
  return {.epoch = epoch + 1,
          .epochs = options_.epochs,
          .ranks = world_.size(),
          .step = step,
          .steps = end,
          .loss = result.loss,
          .top1 = result.top1,
          .top5 = result.top5,
          .images_per_second = images_per_second(),
          .data_seconds = result.data_seconds,
          .exposed_seconds = result.exposed_seconds,
          .seconds_left = seconds_left(epoch, end - step),
          .gpu_bytes = gpu_peak_bytes(setup_.device)};
}

double EpochLoop::seconds_left(int epoch, std::size_t steps_of_epoch) const {
  const auto epochs_after = static_cast<std::size_t>(options_.epochs - epoch - 1);
  return training_seconds_ / static_cast<double>(steps_done_) *
             static_cast<double>(epochs_after * setup_.sampler.steps() + steps_of_epoch) +
         validation_seconds_ * (options_.epochs - epoch);
}

double EpochLoop::average_over_ranks(double value) const {
  hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
  return value;
}

}  // namespace vision
