/// Elastic training: `horarun --elastic -np 2 elastic lose`. Ranks are killed on the way, and the
/// weights are those of a training that lost none.
#include <hora/phase.h>
#include <hora/torch.h>

#include <csignal>
#include <iostream>
#include <string_view>

constexpr std::int64_t kSteps = 60;

// Loses a rank in each of the first two generations.
torch::Tensor train(const hora::Context& world, bool is_elastic, bool loses) {
  torch::manual_seed(1);
  torch::nn::Linear model(8, 1);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.05));
  hora::DistributedOptimizer optimizer(world, adam, model->named_parameters());
  torch::manual_seed(1 + world.rank());  // of the batches that this rank draws
  std::int64_t step = 0;
  std::optional<hora::Checkpoint> checkpoint;
  if (is_elastic) {
    checkpoint.emplace(world, hora::CheckpointOptions{});  // without a folder: in memory alone
    checkpoint->add_weights(*model);
    checkpoint->add_optimizer("optimizer", optimizer);
    checkpoint->add_random_state();
    step = checkpoint->load().value_or(hora::CheckpointPosition{}).step;
  }
  while (step < kSteps) {
    optimizer.zero_grad();
    (model->forward(torch::randn({16, 8})) - 1).square().mean().backward();
    optimizer.step();
    ++step;
    if (checkpoint) checkpoint->commit({.step = step});
    const bool is_last = world.rank() == world.size() - 1;
    if (loses && is_last && step == 20 * hora::generation()) std::raise(SIGKILL);
  }
  return model->weight.detach();
}

int main(int argc, char** argv) {
  const bool loses = argc > 1 && std::string_view(argv[1]) == "lose" && hora::generation() < 3;
  hora::Context world = hora::init();
  const torch::Tensor weights = train(world, true, loses);
  TORCH_CHECK(torch::equal(weights, train(world, false, false)), "the weights differ");
  if (world.rank() == 0) std::cout << "equal in generation " << hora::generation() << std::endl;
}
