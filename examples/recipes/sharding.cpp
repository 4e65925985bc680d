/// Sharding: in every epoch each sample goes to one rank, also where ranks get different numbers.
#include <ATen/CPUGeneratorImpl.h>
#include <hora/torch.h>

#include <cstdint>

constexpr std::int64_t kSamples = 97, kBatch = 8, kEpochs = 20;
constexpr std::uint64_t kSeed = 7;

// All ranks draw the same permutation from seed and epoch; each takes every size-th place of it.
torch::Tensor shard(const hora::Context& world, std::int64_t epoch) {
  const at::Generator generator = at::detail::createCPUGenerator(kSeed + epoch);
  const torch::Tensor order = torch::randperm(kSamples, generator, torch::kLong);
  return order.slice(0, world.rank(), kSamples, world.size());
}

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::manual_seed(1);
  const torch::Tensor samples = torch::randn({kSamples, 4});
  const torch::Tensor targets = samples.matmul(torch::tensor({{1.F}, {-2.F}, {3.F}, {0.5F}}));
  torch::nn::Linear model(4, 1);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.2));
  // Losses are summed, and divided by the size of a whole step: so each sample has the same weight,
  // also in a batch that is cut short and in a step that some ranks take no part in.
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
                                       {.op = hora::ReduceOp::sum});
  hora::broadcast_parameters(world, *model);
  torch::Tensor uses = torch::zeros({kSamples}, torch::kLong);
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const torch::Tensor& batch : shard(world, epoch).split(kBatch)) {
      optimizer.zero_grad();
      const torch::Tensor errors = model->forward(samples.index({batch})) - targets.index({batch});
      (errors.square().sum() / (kBatch * world.size())).backward();
      optimizer.step();
      uses.index_add_(0, batch, torch::ones_like(batch));
    }
    optimizer.join();  // until the others' samples are used up, too
  }
  hora::allreduce_(world, uses, {.name = "uses", .op = hora::ReduceOp::sum});
  TORCH_CHECK(uses.eq(kEpochs).all().item<bool>(), "a sample was used ", uses.min().item(), " to ",
              uses.max().item(), " times in ", kEpochs, " epochs");
  const double loss = (model->forward(samples) - targets).square().mean().item<double>();
  TORCH_CHECK(loss < 1e-3, "the loss is ", loss, " after ", kEpochs, " epochs");
}
