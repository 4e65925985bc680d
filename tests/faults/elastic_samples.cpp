// Counts how often each sample of each epoch is used, in an elastic job whose ranks change.
// Usage: elastic_samples EPOCHS
#include <hora/phase.h>
#include <hora/torch.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

int main(int argc, char** argv) {
  constexpr std::int64_t kSamples = 1001;  // no number of ranks and batch divides it
  const std::int64_t epochs = argc > 1 ? std::atoi(argv[1]) : 1;
  const hora::Context world = hora::init();
  torch::manual_seed(1);
  torch::nn::Linear model(1, 1);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters());
  hora::DistributedSampler sampler(kSamples, {.rank = world.rank(),
                                              .size = world.size(),
                                              .seed = 1,
                                              .batch = 2,
                                              .remainder = hora::Remainder::keep});
  hora::SamplerPosition position = sampler.position(0);
  torch::Tensor used = torch::zeros({epochs, kSamples}, torch::kInt);  // by all ranks
  hora::Checkpoint checkpoint(world, {});
  checkpoint.add_weights(*model);
  checkpoint.add_optimizer("optimizer", optimizer);
  checkpoint.add_tensors("used", {{"samples", used}});
  checkpoint.add_text(
      "position",
      [&] { return std::to_string(position.epoch) + " " + std::to_string(position.consumed); },
      [&](const std::string& text) {
        std::istringstream(text) >> position.epoch >> position.consumed;
      });
  std::int64_t done = checkpoint.load().value_or(hora::CheckpointPosition{}).step;
  for (; std::cmp_less(position.epoch, epochs); ++position.epoch, position.consumed = 0) {
    sampler.restore(position);
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      torch::Tensor own = torch::zeros(kSamples, torch::kInt);
      optimizer.zero_grad();
      torch::Tensor loss = model->forward(torch::zeros({1, 1})).sum();
      for (const std::size_t sample : sampler.batch(step)) {
        own[static_cast<std::int64_t>(sample)] += 1;
        loss = loss + model->forward(torch::ones({1, 1})).sum();
      }
      loss.backward();
      own = hora::allreduce(world, own, {.name = "used", .op = hora::ReduceOp::sum});
      optimizer.step();
      used[static_cast<std::int64_t>(position.epoch)] += own;
      position = sampler.position(step + 1);
      checkpoint.commit({.step = ++done, .epoch = static_cast<std::int64_t>(position.epoch)});
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (world.rank() == 0) std::cout << "epoch " << position.epoch << " is done" << std::endl;
  }
  if (world.rank() == 0) {
    std::cout << "generation " << hora::generation() << ": " << (used == 1).sum().item<int>()
              << " of " << used.numel() << " samples were used once" << std::endl;
  }
}
