/// Linear scaling of the learning rate with gradual warm-up: Goyal et al., "Accurate, Large
/// Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677, sections 2.1 and 2.2.
#include <hora/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>

constexpr double kBaseRate = 0.005;  // the rate for one rank alone
constexpr std::int64_t kSteps = 60, kWarmUpSteps = 10, kBatch = 16;

// Grows by the same amount in every step of the warm-up, from the base rate to `ranks` times it.
double learning_rate(std::int64_t step, int ranks) {
  const double progress = std::min(1.0, static_cast<double>(step) / kWarmUpSteps);
  return kBaseRate * (1.0 + (ranks - 1) * progress);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

// Every rank draws batches of its own.
torch::Tensor loss(torch::nn::Linear& model, std::int64_t step, int rank) {
  torch::manual_seed(1000 * step + rank);
  const torch::Tensor inputs = torch::randn({kBatch, 4});
  return (model->forward(inputs) - inputs.sum(1, /*keepdim=*/true)).square().mean();
}

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  hora::broadcast_parameters(world, *model);
  torch::nn::Linear alone(std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone()));
  const torch::Tensor start = model->weight.detach().clone();
  torch::optim::SGD sgd(model->parameters(), kBaseRate), sgd_alone(alone->parameters(), kBaseRate);
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const double rate = learning_rate(step, world.size());  // the same on every rank
    set_learning_rate(sgd, rate);
    optimizer.zero_grad();
    loss(model, step, world.rank()).backward();
    optimizer.step();

    // Section 2.1: a step at k times the rate is close to k steps of one rank over the k batches.
    set_learning_rate(sgd_alone, rate / world.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      sgd_alone.zero_grad();
      loss(alone, step, rank).backward();
      sgd_alone.step();
    }
  }
  const double apart = (model->weight - alone->weight).norm().item<double>();
  const double moved = (alone->weight - start).norm().item<double>();
  TORCH_CHECK(apart < 0.02 * moved, "weights are ", apart, " apart, having moved by ", moved);
}
