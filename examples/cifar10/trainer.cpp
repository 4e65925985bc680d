#include "examples/cifar10/trainer.h"

#include <hora/grad_scaler.h>
#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "examples/cifar10/augmentation.h"
#include "examples/cifar10/autocast.h"
#include "examples/cifar10/learning_rate.h"
#include "examples/cifar10/model.h"
#include "examples/cifar10/output_file.h"

namespace cifar10 {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
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

class Trainer {
 public:
  Trainer(const hora::Context& world, const Arguments& arguments, const Data& data,
          const TrainingSampler& sampler, vision::Progress& progress, vision::TrainingLog& log)
      : world_(world),
        arguments_(arguments),
        data_(data),
        sampler_(sampler),
        progress_(progress),
        log_(log),
        device_(choose_device(world, arguments)),
        model_(make_model(arguments, device_, sampler.steps())),
        sgd_(model_->parameters(), torch::optim::SGDOptions(arguments.learning_rate)
                                       .momentum(arguments.momentum)
                                       .weight_decay(arguments.weight_decay)),
        optimizer_(world, sgd_, model_->named_parameters()),
        scaler_(optimizer_, {.enabled = arguments.amp == Precision::float16}) {
    hora::broadcast_parameters(world, *model_, /*root=*/0);
  }

  Report run() {
    describe();
    Report report{.ranks = world_.size(),
                  .nodes = world_.cross_size(),
                  .data = data_.id(),
                  .epochs = arguments_.epochs};
    const auto start = Clock::now();
    for (int epoch = 0; epoch < arguments_.epochs; ++epoch) {
      const double loss = train_epoch(epoch);
      const ValidationResult result = validate();
      log_.epoch({.loss = loss, .top1 = result.accuracy, .validation_seconds = validation_seconds_},
                 std::chrono::system_clock::now());
      report.best_accuracy = std::max(report.best_accuracy, result.accuracy);
      progress_.line(fmt::format(
          "epoch {}/{}: loss {:.3f}, validation {:.2f} % ({} of {} images), {:.0f} images/s",
          epoch + 1, arguments_.epochs, loss, result.accuracy, result.correct, result.images,
          images_per_second()));
    }
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
  void describe() {
    std::int64_t values = 0;
    for (const auto& parameter : model_->parameters()) {
      values += parameter.numel();
    }
    std::string nodes;
    for (int node = 0; node < world_.cross_size(); ++node) {
      nodes += (node == 0 ? "" : " + ") + std::to_string(world_.ranks_of_node(node).size());
    }
    progress_.line(fmt::format("data: {}, {} training and {} validation images from {}",
                               data_.title(), data_.training.size(), data_.validation.size(),
                               arguments_.data));
    progress_.line(fmt::format("model: ResNet-18 with {} stem, {} values",
                               arguments_.stem == Stem::cifar ? "the CIFAR" : "torchvision's",
                               values));
    progress_.line(fmt::format("ranks: {} on {} node{} ({}), {} thread{} each", world_.size(),
                               world_.cross_size(), world_.cross_size() == 1 ? "" : "s", nodes,
                               torch::get_num_threads(), torch::get_num_threads() == 1 ? "" : "s"));
    constexpr std::array precisions{"float32", "float16 (autocast)", "bfloat16 (autocast)"};
    progress_.line(fmt::format("device: {}, {}{}", device_.str(),
                               precisions[static_cast<std::size_t>(arguments_.amp)],
                               arguments_.channels_last ? ", channels last" : ""));
    progress_.line(fmt::format("batch: {} a rank, {} in all; {} epochs of {} steps; seed {}",
                               sampler_.batch(), images_a_step(), arguments_.epochs,
                               sampler_.steps(), arguments_.seed));
    log_.run({.ranks = world_.size(),
              .nodes = world_.cross_size(),
              .batch = sampler_.batch(),
              .epochs = arguments_.epochs,
              .steps = sampler_.steps(),
              .data = data_.id(),
              .model = "ResNet-18"});
  }

  std::size_t images_a_step() const {
    return sampler_.batch() * static_cast<std::size_t>(world_.size());
  }
  double images_per_second() const {
    return static_cast<double>(steps_done_ * images_a_step()) / training_seconds_;
  }

  Batch make_batch(const Dataset& dataset, std::span<const std::size_t> images,
                   const std::vector<Placement>& placements) const {
    const auto count = static_cast<std::int64_t>(images.size());
    Batch batch{torch::empty({count, channels, side, side}), torch::empty({count}, torch::kInt64)};
    auto* out = batch.images.data_ptr<float>();
    auto* label = batch.labels.data_ptr<std::int64_t>();
    for (std::size_t i = 0; i < images.size(); ++i) {
      write_image(dataset.pixels(images[i]), placements.empty() ? Placement{} : placements[i],
                  data_.source.normalisation, out + i * image_bytes);
      label[i] = dataset.label(images[i]);
    }
    batch.images = batch.images.to(device_);
    if (arguments_.channels_last) {
      batch.images = batch.images.contiguous(torch::MemoryFormat::ChannelsLast);
    }
    return {batch.images, batch.labels.to(device_)};
  }

  Batch make_training_batch(std::span<const std::size_t> images, int epoch) const {
    std::vector<Placement> placements;
    for (const std::size_t image : images) {
      placements.push_back(
          draw_placement(data_.source, arguments_.seed, static_cast<std::uint64_t>(epoch), image));
    }
    return make_batch(data_.training, images, placements);
  }

  double set_learning_rate() {
    const double rate =
        learning_rate(arguments_.learning_rate, steps_done_,
                      sampler_.steps() * static_cast<std::size_t>(arguments_.epochs));
    for (auto& group : sgd_.param_groups()) {
      static_cast<torch::optim::SGDOptions&>(group.options()).lr(rate);
    }
    return rate;
  }

  Output forward(const Batch& batch) {
    const Autocast autocast(device_, arguments_.amp);
    const torch::Tensor logits = model_(batch.images).to(torch::kFloat32);
    return {torch::nn::functional::cross_entropy(logits, batch.labels),
            logits.detach().argmax(1).eq(batch.labels).sum()};
  }

  // The mean loss over all ranks.
  double train_epoch(int epoch) {
    model_->train();
    const std::vector<std::size_t> order = sampler_.epoch(static_cast<std::uint64_t>(epoch));
    const double seconds_before = training_seconds_;
    const auto start = Clock::now();
    double sum_of_losses = 0;
    for (std::size_t step = 0; step < sampler_.steps(); ++step) {
      const auto step_start = Clock::now();
      const Batch batch = make_training_batch(
          std::span(order).subspan(step * sampler_.batch(), sampler_.batch()), epoch);
      const double data_seconds = seconds_since(step_start);
      const auto waited_before = optimizer_.statistics().waited;
      const double rate = set_learning_rate();
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
          .top1 = 100 * correct / static_cast<double>(sampler_.batch()),
          .learning_rate = rate,
          .images_per_second = images_per_second(),
          .seconds = seconds_since(step_start),
          .data_seconds = data_seconds,
          .exposed_seconds = waited.count(),
          .seconds_left = seconds_left(epoch)};
      progress_.update(measured, Clock::now());
      log_.step(measured, std::chrono::system_clock::now());
    }
    return average_over_ranks(sum_of_losses / static_cast<double>(sampler_.steps()));
  }

  double seconds_left(int epoch) const {
    const std::size_t all_steps = sampler_.steps() * static_cast<std::size_t>(arguments_.epochs);
    return training_seconds_ / static_cast<double>(steps_done_) *
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
    const std::vector<std::size_t> own =
        validation_shard(data_.validation.size(), {world_.rank(), world_.size()});
    std::array<std::int64_t, 2> counts{0, static_cast<std::int64_t>(own.size())};
    for (std::size_t done = 0; done < own.size(); done += sampler_.batch()) {
      const std::size_t count = std::min(sampler_.batch(), own.size() - done);
      const Batch batch = make_batch(data_.validation, std::span(own).subspan(done, count), {});
      const Autocast autocast(device_, arguments_.amp);
      counts[0] += model_(batch.images).argmax(1).eq(batch.labels).sum().item<std::int64_t>();
    }
    hora::allreduce(world_, hora::view(counts.data(), std::int64_t{counts.size()}),
                    {.name = "validation counts", .op = hora::ReduceOp::sum});
    if (counts[1] != static_cast<std::int64_t>(data_.validation.size())) {
      throw std::logic_error(
          fmt::format("Validation counted {} images of {}", counts[1], data_.validation.size()));
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
  const TrainingSampler& sampler_;
  vision::Progress& progress_;
  vision::TrainingLog& log_;
  torch::Device device_;
  ResNet18 model_;
  torch::optim::SGD sgd_;
  hora::DistributedOptimizer optimizer_;
  hora::GradScaler scaler_;
  std::size_t steps_done_ = 0;
  double training_seconds_ = 0;    ///< without validation
  double validation_seconds_ = 0;  ///< of the last one
};

}  // namespace

Report train(const hora::Context& world, const Arguments& arguments, const Data& data,
             const TrainingSampler& sampler, vision::Progress& progress, vision::TrainingLog& log) {
  return Trainer(world, arguments, data, sampler, progress, log).run();
}

}  // namespace cifar10
