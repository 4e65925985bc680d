/// A training with all that a checkpoint can hold, and folders that ranks share.
#pragma once

#include <hora/objects.h>
#include <hora/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {

/// Rank 0's, on every rank of the context. The end is collective, too.
class SharedFolder {
 public:
  explicit SharedFolder(const Context& world) : world_(world) {
    if (world.rank() == 0) own_.emplace();
    path_ = broadcast_object(world, std::string_view(own_ ? own_->path().string() : ""));
  }
  ~SharedFolder() { barrier(world_); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  const Context& world_;
  std::optional<TemporaryFolder> own_;
  std::string path_;
};

struct TrainedOptions {
  DistributedOptimizerOptions optimizer = {};
  MakeOptimizer make = make_sgd;
  bool scaled = false;  ///< by a GradScaler
};

/// Each step draws its batch from the rank's random state, which only a checkpoint can continue.
struct Trained {
  Trained(const Context& given, const TrainedOptions& options, std::uint64_t seed_of_weights)
      : world(given),
        network(small_network(seed_of_weights)),
        wrapped(options.make(network->parameters())),
        optimizer(world, *wrapped, network->named_parameters(), options.optimizer),
        average(copies_of(network->parameters())) {
    if (options.scaled) {
      scaler.emplace(optimizer, GradScalerOptions{.initial_scale = 1024.0, .growth_interval = 3});
    }
    torch::manual_seed(seed_of_weights + 100 + static_cast<std::uint64_t>(world.rank()));
  }

  void add_to(Checkpoint& checkpoint, const TrainedOptions& options) {
    checkpoint.add_weights(*network);
    checkpoint.add_optimizer("optimizer", optimizer);
    if (scaler) checkpoint.add_scaler("scaler", *scaler);
    if (options.optimizer.hook) checkpoint.add_hook("hook", *options.optimizer.hook);
    Checkpoint::Tensors averages;
    for (std::size_t i = 0; i < average.size(); ++i) {
      averages.insert(std::to_string(i), average[i]);
    }
    checkpoint.add_tensors("average", averages);
    checkpoint.add_number("steps", steps);
    checkpoint.add_number("loss", loss, CheckpointScope::each_rank);
    checkpoint.add_text(
        "sampler", [this] { return sampler; }, [this](const std::string& text) { sampler = text; });
    checkpoint.add_random_state();
  }

  void step(const Batch& batch) {
    optimizer.zero_grad();
    torch::Tensor of_batch = loss_of(network, batch);
    loss = of_batch.item<double>();
    if (scaler) {
      scaler->scale(of_batch).backward();
      scaler->step();
      scaler->update();
    } else {
      of_batch.backward();
      optimizer.step();
    }
    const torch::NoGradGuard no_grad;
    const auto parameters = network->parameters();
    for (std::size_t i = 0; i < average.size(); ++i) average[i].lerp_(parameters[i], 0.1);
    ++steps;
    sampler = "after " + std::to_string(steps);
  }
  void step() { step({torch::randn({2, 3, 6, 6}), torch::randint(5, {2}, torch::kLong)}); }

  /// All that the steps have changed.
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all = copies_of(network->parameters());
    for (const auto& tensor : average) all.push_back(tensor.clone());
    all.push_back(torch::tensor(loss, torch::kDouble));
    all.push_back(torch::tensor(steps));
    if (scaler) all.push_back(torch::tensor(scaler->current_scale(), torch::kDouble));
    return all;
  }

  const Context& world;
  torch::nn::Sequential network;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
  std::optional<GradScaler> scaler;
  std::vector<torch::Tensor> average;
  std::int64_t steps = 0;
  double loss = 0.0;
  std::string sampler;
};

}  // namespace hora::internal::test
