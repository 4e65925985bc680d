#include "examples/cifar10/trainer.h"

#include <hora/grad_scaler.h>
#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "examples/cifar10/autocast.h"
#include "examples/cifar10/model.h"
#include "examples/cifar10/output_file.h"
#include "examples/cifar10/training_state.h"
#include "examples/vision/data/loader.h"
#include "examples/vision/data/tensor_batch.h"

namespace cifar10 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Linear warm-up for a sixth of all steps, then half a cosine down to 0.
hora::LearningRateSchedule make_schedule(const Arguments& arguments, std::size_t steps_an_epoch) {
  const auto steps = static_cast<std::int64_t>(steps_an_epoch);
  const auto warmup_steps = static_cast<double>(steps * arguments.epochs / 6);
  return {{.rate = arguments.learning_rate,
           .warmup_start = arguments.learning_rate / (warmup_steps + 1),
           .warmup_epochs = warmup_steps / static_cast<double>(steps),
           .decay = hora::LearningRateDecay::cosine,
           .epochs = static_cast<double>(arguments.epochs)},
          steps};
}

/// This rank's samples of the sampler's epoch, step after step.
std::vector<std::size_t> samples_of(const hora::DistributedSampler& sampler) {
  std::vector<std::size_t> samples;
  samples.reserve(sampler.local_samples());
  for (std::size_t step = 0; step < sampler.steps(); ++step) {
    const std::vector<std::size_t> batch = sampler.batch(step);
    samples.insert(samples.end(), batch.begin(), batch.end());
  }
  return samples;
}

struct EpochResult {
  double loss;     ///< mean over all ranks
  double waiting;  ///< share of the time in which a rank had no data, mean over ranks
};

struct Output {
  torch::Tensor loss;
  torch::Tensor correct;  ///< images whose largest logit is their label's
};

struct ValidationResult {
  double accuracy;  ///< percent
  std::int64_t correct;
  std::int64_t images;
};

vision::Layout layout_of(const Arguments& arguments) {
  return arguments.channels_last ? vision::Layout::channels_last : vision::Layout::channels_first;
}

class Trainer {
 public:
  Trainer(const hora::Context& world, const Arguments& arguments, const Data& data,
          const hora::DistributedSampler& sampler, vision::Progress& progress,
          vision::TrainingLog& log)
      : world_(world),
        arguments_(arguments),
        data_(data),
        sampler_(sampler),
        validation_sampler_(data.sets.validation->size(), {.rank = world.rank(),
                                                           .size = world.size(),
                                                           .shuffle = false,
                                                           .batch = sampler.options().batch,
                                                           .remainder = hora::Remainder::keep}),
        schedule_(make_schedule(arguments, sampler.steps())),
        progress_(progress),
        log_(log),
        device_(choose_device(world, arguments)),
        model_(
            make_model(arguments, device_, data.sets.training->classes().size(), sampler.steps())),
        training_loader_(*data.sets.training, training_transform(data.source, layout_of(arguments)),
                         loader_options()),
        validation_loader_(*data.sets.validation,
                           validation_transform(data.source, layout_of(arguments)),
                           loader_options()),
        sgd_(model_->parameters(), torch::optim::SGDOptions(arguments.learning_rate)
                                       .momentum(arguments.momentum)
                                       .weight_decay(arguments.weight_decay)),
        optimizer_(world, sgd_, model_->named_parameters()),
        scaler_(optimizer_, {.enabled = arguments.amp == Precision::float16}),
        state_(world, {arguments.model_dir, arguments.resume}, *model_, optimizer_, scaler_) {
    hora::broadcast_parameters(world, *model_, /*root=*/0);
  }

  Report run() {
    describe();
    Report report{.ranks = world_.size(),
                  .nodes = world_.cross_size(),
                  .data = data_.sets.id(),
                  .epochs = arguments_.epochs};
    const auto start = Clock::now();
    resume();
    for (int epoch = state_.epochs(); epoch < arguments_.epochs; ++epoch) {
      const EpochResult trained = train_epoch(epoch);
      const ValidationResult result = validate();
      log_.epoch({.loss = trained.loss,
                  .top1 = result.accuracy,
                  .validation_seconds = validation_seconds_},
                 std::chrono::system_clock::now());
      state_.epoch_done(result.accuracy);
      progress_.line(fmt::format(
          "epoch {}/{}: loss {:.3f}, validation {:.2f} % ({} of {} images), {:.0f} images/s, "
          "waited for data in {:.1f} % of the time",
          epoch + 1, arguments_.epochs, trained.loss, result.accuracy, result.correct,
          result.images, images_per_second(), 100 * trained.waiting));
    }
    state_.wait();
    report.best_accuracy = state_.best_accuracy();
    report.images_per_second = images_per_second();
    report.hidden_share = average_over_ranks(optimizer_.statistics().hidden_share());
    progress_.line(fmt::format(
        "best validation accuracy {:.2f} %, {:.0f} images/s, {:.0f} % of the averaging hidden "
        "behind backward, trained and validated in {}",
        report.best_accuracy, report.images_per_second, 100 * report.hidden_share,
        vision::to_minutes(seconds_since(start))));
    save();
    return report;
  }

 private:
  vision::LoaderOptions loader_options() const {
    return {.batch = sampler_.options().batch,
            .workers = arguments_.workers,
            .seed = arguments_.seed,
            .allocator = vision::allocator_for(device_)};
  }

  void describe() {
    std::string nodes;
    for (int node = 0; node < world_.cross_size(); ++node) {
      nodes += (node == 0 ? "" : " + ") + std::to_string(world_.ranks_of_node(node).size());
    }
    progress_.line(fmt::format("data: {}, {} training and {} validation images from {}",
                               data_.sets.training->title(), data_.sets.training->size(),
                               data_.sets.validation->size(), arguments_.data));
    progress_.line("model: " + cifar10::describe(*model_));
    progress_.line(fmt::format("ranks: {} on {} node{} ({}), {} thread{} each", world_.size(),
                               world_.cross_size(), world_.cross_size() == 1 ? "" : "s", nodes,
                               torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s"));
    constexpr std::array precisions{"float32", "float16 (autocast)", "bfloat16 (autocast)"};
    progress_.line(fmt::format("device: {}, {}{}", device_.str(),
                               precisions[static_cast<std::size_t>(arguments_.amp)],
                               arguments_.channels_last ? ", channels last" : ""));
    progress_.line(fmt::format("batch: {} a rank, {} in all; {} epochs of {} steps; seed {}",
                               sampler_.options().batch, images_a_step(), arguments_.epochs,
                               sampler_.steps(), arguments_.seed));
    log_.run({.ranks = world_.size(),
              .nodes = world_.cross_size(),
              .batch = sampler_.options().batch,
              .epochs = arguments_.epochs,
              .steps = sampler_.steps(),
              .data = data_.sets.id(),
              .model = arguments_.architecture});
  }

  std::size_t images_a_step() const {
    return sampler_.options().batch * static_cast<std::size_t>(world_.size());
  }
  double images_per_second() const {
    const std::size_t steps = steps_done_ - resumed_steps_;
    return steps > 0 ? static_cast<double>(steps * images_a_step()) / training_seconds_ : 0;
  }

  // Null after the epoch's last batch.
  std::optional<vision::TensorBatch> next_batch(vision::Loader& loader) const {
    vision::Batch batch = loader.next();
    if (!batch) {
      return std::nullopt;
    }
    return vision::to_tensors(std::move(batch), loader.image_size(), layout_of(arguments_),
                              device_);
  }

  Output forward(const vision::TensorBatch& batch) {
    const Autocast autocast(device_, arguments_.amp);
    const torch::Tensor logits = model_->forward(batch.images).to(torch::kFloat32);
    return {torch::nn::functional::cross_entropy(logits, batch.labels),
            logits.detach().argmax(1).eq(batch.labels).sum()};
  }

  void resume() {
    const std::string folder = state_.resume();
    if (folder.empty()) return;
    resumed_steps_ = static_cast<std::size_t>(state_.epochs()) * sampler_.steps();
    steps_done_ = resumed_steps_;
    progress_.line(fmt::format("resumed after epoch {} from {}", state_.epochs(), folder));
  }

  EpochResult train_epoch(int epoch) {
    model_->train();
    const auto number = static_cast<std::uint64_t>(epoch);
    sampler_.set_epoch(number);
    const double seconds_before = training_seconds_;
    const auto start = Clock::now();
    training_loader_.start(number, samples_of(sampler_));
    double sum_of_losses = 0;
    for (std::size_t step = 0; step < sampler_.steps(); ++step) {
      const auto step_start = Clock::now();
      const vision::TensorBatch batch = next_batch(training_loader_).value();
      const double data_seconds = seconds_since(step_start);
      const auto waited_before = optimizer_.statistics().waited;
      const double rate = schedule_.apply(optimizer_, static_cast<std::int64_t>(steps_done_));
      optimizer_.zero_grad();
      const Output output = forward(batch);
      scaler_.scale(output.loss).backward();
      scaler_.step();
      scaler_.update();
      ++steps_done_;
      const auto loss = output.loss.item<double>();
      const auto correct = output.correct.item<double>();
      training_seconds_ = seconds_before + seconds_since(start);
      sum_of_losses += loss;
      const std::chrono::duration<double> waited = optimizer_.statistics().waited - waited_before;
      const vision::TrainingStep measured{
          .epoch = epoch + 1,
          .epochs = arguments_.epochs,
          .step = step + 1,
          .steps = sampler_.steps(),
          .loss = loss,
          .top1 = 100 * correct / static_cast<double>(sampler_.options().batch),
          .learning_rate = rate,
          .images_per_second = images_per_second(),
          .seconds = seconds_since(step_start),
          .data_seconds = data_seconds,
          .exposed_seconds = waited.count(),
          .seconds_left = seconds_left(epoch)};
      progress_.update(measured, Clock::now());
      log_.step(measured, std::chrono::system_clock::now());
    }
    const double seconds = training_seconds_ - seconds_before;
    return {.loss = average_over_ranks(sum_of_losses / static_cast<double>(sampler_.steps())),
            .waiting = average_over_ranks(training_loader_.waited() / seconds)};
  }

  double seconds_left(int epoch) const {
    const std::size_t all_steps = sampler_.steps() * static_cast<std::size_t>(arguments_.epochs);
    return training_seconds_ / static_cast<double>(steps_done_ - resumed_steps_) *
               static_cast<double>(all_steps - steps_done_) +
           validation_seconds_ * (arguments_.epochs - epoch);
  }

  // Each rank counts its shard with the same buffers; the counts are integers, so that the sum is
  // exact and can be checked.
  ValidationResult validate() {
    const auto start = Clock::now();
    const torch::NoGradGuard no_grad;
    hora::broadcast_buffers(world_, *model_, /*root=*/0);
    model_->eval();
    std::array<std::int64_t, 2> counts{
        0, static_cast<std::int64_t>(validation_sampler_.local_samples())};
    validation_loader_.start(/*epoch=*/0, samples_of(validation_sampler_));
    while (const auto batch = next_batch(validation_loader_)) {
      const Autocast autocast(device_, arguments_.amp);
      counts[0] +=
          model_->forward(batch->images).argmax(1).eq(batch->labels).sum().item<std::int64_t>();
    }
    hora::allreduce(world_, hora::view(counts.data(), std::int64_t{counts.size()}),
                    {.name = "validation counts", .op = hora::ReduceOp::sum});
    if (counts[1] != static_cast<std::int64_t>(data_.sets.validation->size())) {
      throw std::logic_error(fmt::format("Validation counted {} images of {}", counts[1],
                                         data_.sets.validation->size()));
    }
    validation_seconds_ = seconds_since(start);
    return {100.0 * static_cast<double>(counts[0]) / static_cast<double>(counts[1]), counts[0],
            counts[1]};
  }

  double average_over_ranks(double value) const {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "average"});
    return value;
  }

  void save() {
    if (arguments_.save.empty() || world_.rank() != 0) {
      return;
    }
    // Through a stream: a file's name would become part of the archive.
    std::ostringstream bytes;
    torch::save(model_, bytes);
    write_file(arguments_.save, bytes.view());
    progress_.line("saved the model to " + arguments_.save);
  }

  const hora::Context& world_;
  const Arguments& arguments_;
  const Data& data_;
  hora::DistributedSampler sampler_;
  hora::DistributedSampler validation_sampler_;
  hora::LearningRateSchedule schedule_;
  vision::Progress& progress_;
  vision::TrainingLog& log_;
  torch::Device device_;
  std::shared_ptr<vision::Classifier> model_;
  vision::Loader training_loader_;
  vision::Loader validation_loader_;
  torch::optim::SGD sgd_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  TrainingState state_;
  std::size_t steps_done_ = 0;
  std::size_t resumed_steps_ = 0;  ///< of these, by an earlier run
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace

Report train(const hora::Context& world, const Arguments& arguments, const Data& data,
             const hora::DistributedSampler& sampler, vision::Progress& progress,
             vision::TrainingLog& log) {
  return Trainer(world, arguments, data, sampler, progress, log).run();
}

}  // namespace cifar10
