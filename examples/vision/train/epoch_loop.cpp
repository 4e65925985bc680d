#include "examples/vision/train/epoch_loop.h"

#include <hora/hora.h>
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdint>

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

void EpochLoop::resume_after(int epochs) {
  resumed_steps_ = static_cast<std::size_t>(epochs) * sampler_.steps();
  steps_done_ = resumed_steps_;
}

TrainedEpoch EpochLoop::run(int epoch) {
  setup_.model->train();
  const auto number = static_cast<std::uint64_t>(epoch);
  sampler_.set_epoch(number);
  const double seconds_before = training_seconds_;
  const auto start = Clock::now();
  batches_.start(number, sampler_.local_order());
  double sum_of_losses = 0;
  std::size_t losses = 0;
  for (std::size_t step = 0; step < sampler_.steps(); ++step) {
    const auto step_start = Clock::now();
    const double rate = schedule_.apply(optimizer_, static_cast<std::int64_t>(steps_done_));
    const StepResult result = step_.run(batches_);
    ++steps_done_;
    training_seconds_ = seconds_before + seconds_since(start);
    if (result.non_finite) {
      progress_.line(fmt::format("epoch {}/{}, step {}/{}: left out on all ranks: {}", epoch + 1,
                                 options_.epochs, step + 1, sampler_.steps(),
                                 result.non_finite->text()));
    } else {
      sum_of_losses += result.loss;
      ++losses;
    }
    TrainingStep shown = measured(epoch, step, result);
    shown.learning_rate = rate;
    shown.seconds = seconds_since(step_start);
    progress_.update(shown, Clock::now());
    setup_.log.step(shown, std::chrono::system_clock::now());
  }
  const double seconds = training_seconds_ - seconds_before;
  return {.loss = average_over_ranks(sum_of_losses / static_cast<double>(losses)),
          .waiting = average_over_ranks(batches_.waited() / seconds)};
}

double EpochLoop::images_per_second() const {
  const std::size_t images =
      (steps_done_ - resumed_steps_) * static_cast<std::size_t>(images_a_step(sampler_));
  return images > 0 ? static_cast<double>(images) / training_seconds_ : 0;
}

TrainingStep EpochLoop::measured(int epoch, std::size_t step, const StepResult& result) const {
  return {.epoch = epoch + 1,
          .epochs = options_.epochs,
          .step = step + 1,
          .steps = sampler_.steps(),
          .loss = result.loss,
          .top1 = result.top1,
          .top5 = result.top5,
          .images_per_second = images_per_second(),
          .data_seconds = result.data_seconds,
          .exposed_seconds = result.exposed_seconds,
          .seconds_left = seconds_left(epoch),
          .gpu_bytes = gpu_peak_bytes(setup_.device)};
}

double EpochLoop::seconds_left(int epoch) const {
  const std::size_t all_steps = sampler_.steps() * static_cast<std::size_t>(options_.epochs);
  return training_seconds_ / static_cast<double>(steps_done_ - resumed_steps_) *
             static_cast<double>(all_steps - steps_done_) +
         validation_seconds_ * (options_.epochs - epoch);
}

double EpochLoop::average_over_ranks(double value) const {
  hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
  return value;
}

}  // namespace vision
