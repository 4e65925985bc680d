/// Linear scaling of the learning rate with gradual warm-up: Goyal et al., "Accurate, Large
/// Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677, sections 2.1 and 2.2.
#include <hora/torch.h>

#include <cstdint>
#include <memory>

constexpr double kBaseRate = 0.005;  // the rate for one rank alone
constexpr std::int64_t kEpochs = 30, kStepsPerEpoch = 2, kBatch = 16;

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

  // From the base rate to `ranks` times it in 5 epochs, then half a cosine down to 0.
  const hora::LearningRateSchedule schedule(
      {.rate = hora::linear_scaling(kBaseRate, kBatch * world.size(), kBatch),
       .warmup_start = kBaseRate,
       .warmup_epochs = 5,
       .decay = hora::LearningRateDecay::cosine,
       .epochs = kEpochs},
      kStepsPerEpoch);
  for (std::int64_t step = 0; step < kEpochs * kStepsPerEpoch; ++step) {
    const double rate = schedule.apply(optimizer, step);  // the same on every rank
    optimizer.zero_grad();
    loss(model, step, world.rank()).backward();
    optimizer.step();

    // Section 2.1: a step at k times the rate is close to k steps of one rank over the k batches.
    hora::set_learning_rate(sgd_alone, rate / world.size());
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
