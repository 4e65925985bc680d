/// A small training whose progress is saved and resumed.
#pragma once

#include <hora/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "examples/vision/train/common_error.h"
#include "examples/vision/train/epoch_steps.h"
#include "examples/vision/train/training_state.h"
#include "tests/support/seed.h"

namespace vision::test {

inline constexpr std::size_t kSamples = 103;
inline constexpr int kEpochs = 2;

struct Variant {
  std::string name;
  bool per_node = false;
  bool hook = false;
};
inline std::ostream& operator<<(std::ostream& stream, const Variant& variant) {
  return stream << variant.name;
}

/// A training on made-up samples, with BatchNorm and dropout, which draws from the rank's random
/// state.
struct TrialRun {
  TrialRun(const hora::Context& given, const TrainingStateOptions& options,
           const Variant& variant = {}, std::uint64_t seed_of_order = hora::internal::test::seed())
      : world(given),
        model(network()),
        sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        hook(variant.hook ? std::make_shared<hora::PowerSgd>(
                                hora::PowerSgdOptions{.rank = 1, .start_step = 2})
                          : nullptr),
        optimizer(world, sgd, model->named_parameters(), {.bucket_bytes = 256, .hook = hook}),
        scaler(optimizer, {.initial_scale = 1024.0, .growth_interval = 3}),
        sampler(kSamples,
                {.rank = world.rank(), .size = world.size(), .seed = seed_of_order, .batch = 3}) {
    state.emplace(world, options,
                  TrainingParts{.model = *model,
                                .optimizer = optimizer,
                                .scaler = scaler,
                                .sampler = sampler,
                                .hook = hook.get()});
    torch::manual_seed(hora::internal::test::seed() + 10 +
                       static_cast<std::uint64_t>(world.rank()));
  }

  static torch::nn::Sequential network() {
    torch::manual_seed(hora::internal::test::seed());
    return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                                 torch::nn::Tanh(), torch::nn::Dropout(0.2),
                                 torch::nn::Linear(8, 3));
  }
  /// Of a sample: the same in each run.
  static torch::Tensor image(std::size_t sample) {
    const auto from = static_cast<double>(sample);
    return torch::arange(from, from + 6, torch::kFloat).sin();
  }

  /// True where the last step asked for was made before the training's end.
  bool train(std::int64_t until_step) {
    hora::DistributedSampler own = sampler;
    while (state->epochs() < kEpochs) {
      const EpochSteps steps(own, state->progress().position);
      const std::vector<std::size_t> samples = steps.samples();
      for (std::size_t step = steps.first(); step < steps.end(); ++step) {
        const std::size_t place = 3 * (steps.first_of_samples() + step - steps.first());
        const double loss = make_step({samples.begin() + static_cast<std::ptrdiff_t>(place),
                                       samples.begin() + static_cast<std::ptrdiff_t>(place + 3)});
        state->step_done(steps.after(step), loss, 3);
        if (state->progress().steps == until_step) return true;
      }
      hora::broadcast_buffers(world, *model);
      state->epoch_done(/*accuracy=*/10.0 * (1 + state->epochs()));
    }
    return false;
  }

  double make_step(const std::vector<std::size_t>& samples) {
    std::vector<torch::Tensor> images;
    std::vector<std::int64_t> labels;
    for (const std::size_t sample : samples) {
      taken.push_back(static_cast<std::int64_t>(sample));
      images.push_back(image(sample));
      labels.push_back(static_cast<std::int64_t>(sample % 3));
    }
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::cross_entropy_loss(model->forward(torch::stack(images)), torch::tensor(labels));
    scaler.scale(loss).backward();
    scaler.step();
    scaler.update();
    sum_of_losses += 3 * loss.item<double>();
    return loss.item<double>();
  }

  /// All that the training has changed, on rank 0's side where ranks differ.
  std::vector<torch::Tensor> values() {
    hora::broadcast_buffers(world, *model);
    std::vector<torch::Tensor> all;
    for (const auto& tensor : hora::weights_of(*model)) all.push_back(tensor.value().clone());
    all.push_back(torch::tensor(scaler.current_scale(), torch::kDouble));
    all.push_back(torch::rand({4}));
    return all;
  }

  const hora::Context& world;
  torch::nn::Sequential model;
  torch::optim::SGD sgd;
  std::shared_ptr<hora::PowerSgd> hook;
  hora::DistributedOptimizer optimizer;
  hora::GradScaler scaler;
  hora::DistributedSampler sampler;
  std::optional<TrainingState> state;
  std::vector<std::int64_t> taken;
  double sum_of_losses = 0;
};

inline std::string message_of_common_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommonError& error) {
    return error.what();
  }
  return "no CommonError";
}

}  // namespace vision::test
