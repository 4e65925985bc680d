// A user's program with LibTorch, in which `using namespace hora` must not hide LibTorch's names.
#include <hora/torch.h>
#include <torch/torch.h>

#include <iostream>

using namespace hora;

int main(int argc, char** argv) {
  Context world = init(argc, argv);
  torch::manual_seed(1);
  torch::nn::Linear model(4, 3);
  model->to(local_device(world));
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  DistributedOptimizer optimizer(world, sgd, model->named_parameters());
  broadcast_parameters(world, *model, /*root=*/0);

  const torch::Tensor before = model->weight.detach().clone();
  optimizer.zero_grad();
  // The gradient of each weight is 1 + rank.
  model->forward(torch::full({1, 4}, 1.0F + static_cast<float>(world.rank()))).sum().backward();
  optimizer.step();

  const double average = 1.0 + (world.size() - 1) / 2.0;
  if (!torch::allclose(before - model->weight, torch::full_like(before, 0.1 * average))) {
    std::cerr << "rank " << world.rank() << ": moved by " << before - model->weight << ", expected "
              << 0.1 * average << '\n';
    return 1;
  }
  world.shutdown();
}
