/// Sharding: in every epoch each sample goes to one rank, also where ranks get different numbers,
/// and where training is interrupted in the middle of an epoch.
#include <hora/torch.h>

#include <cstdint>
#include <vector>

constexpr std::int64_t kSamples = 97, kBatch = 8;
constexpr std::uint64_t kEpochs = 20, kInterruptedEpoch = 11;

torch::Tensor indices(const std::vector<std::size_t>& samples) {
  return torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end()), torch::kLong);
}

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::manual_seed(1);
  const torch::Tensor samples = torch::randn({kSamples, 4});
  const torch::Tensor targets = samples.matmul(torch::tensor({{1.F}, {-2.F}, {3.F}, {0.5F}}));
  torch::nn::Linear model(4, 1);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.2));
  // Losses are summed, and divided by the size of a whole step: so each sample has the same weight,
  // also in a batch that is cut short and in a step for which a rank has none.
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
                                       {.op = hora::ReduceOp::sum});
  hora::broadcast_parameters(world, *model);
  const hora::DistributedSamplerOptions options{.rank = world.rank(),
                                                .size = world.size(),
                                                .seed = 7,
                                                .batch = kBatch,
                                                .remainder = hora::Remainder::keep};
  hora::DistributedSampler sampler(kSamples, options);
  torch::Tensor uses = torch::zeros({kSamples}, torch::kLong);
  const auto train = [&](std::size_t steps) {
    for (std::size_t step = 0; step < steps; ++step) {
      const torch::Tensor batch = indices(sampler.batch(step));
      optimizer.zero_grad();
      const torch::Tensor errors = model->forward(samples.index({batch})) - targets.index({batch});
      (errors.square().sum() / (kBatch * world.size())).backward();
      optimizer.step();
      uses.index_add_(0, batch, torch::ones_like(batch));
    }
  };
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    if (epoch == kInterruptedEpoch) {
      train(1);
      const hora::SamplerPosition position = sampler.position(1);  // what a checkpoint holds
      sampler = hora::DistributedSampler(kSamples, options);       // on any number of ranks
      sampler.restore(position);
    }
    train(sampler.steps());
  }
  hora::allreduce_(world, uses, {.name = "uses", .op = hora::ReduceOp::sum});
  TORCH_CHECK(uses.eq(static_cast<std::int64_t>(kEpochs)).all().item<bool>(), "samples were used ",
              uses);
  const double loss = (model->forward(samples) - targets).square().mean().item<double>();
  TORCH_CHECK(loss < 1e-3, "the loss is ", loss, " after ", kEpochs, " epochs");
}
