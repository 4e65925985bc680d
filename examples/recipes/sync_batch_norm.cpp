/// SyncBatchNorm: batches are normalised by the statistics of all ranks' samples together, so that
/// training is that of one process with the whole batch. BatchNorm takes each rank's own samples.
#include <hora/torch.h>

#include <cstdint>
#include <vector>

torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                               torch::nn::ReLU(), torch::nn::Linear(6, 1));
}

// Two samples a rank: too few for statistics of their own.
torch::Tensor batch(std::int64_t step, int rank) {
  torch::manual_seed(1000 * step + rank);
  return torch::randn({2, 4}) + rank;
}

torch::Tensor loss(torch::nn::Sequential& model, const torch::Tensor& inputs) {
  return (model->forward(inputs) - inputs.sum(1, /*keepdim=*/true)).square().mean();
}

int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::nn::Sequential model = make_model(), whole = make_model();
  // Before the optimizer or after: parameters stay the same tensors.
  const std::size_t converted = hora::convert_batch_norm(world, *model);
  TORCH_CHECK(converted == 1, converted, " layers were converted, expected 1");
  torch::optim::SGD sgd(model->parameters(), 0.05), sgd_whole(whole->parameters(), 0.05);
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters());
  hora::broadcast_parameters(world, *model);
  for (std::int64_t step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    loss(model, batch(step, world.rank())).backward();
    optimizer.step();

    std::vector<torch::Tensor> batches;
    for (int rank = 0; rank < world.size(); ++rank) batches.push_back(batch(step, rank));
    sgd_whole.zero_grad();
    loss(whole, torch::cat(batches)).backward();
    sgd_whole.step();
  }
  // Running statistics are the same bits on every rank, and need no broadcast before evaluation.
  for (const auto& buffer : model->named_buffers()) {
    const torch::Tensor all = hora::allgather(world, buffer.value().unsqueeze(0));
    TORCH_CHECK(all.eq(all[0]).all().item<bool>(), buffer.key(), " differs between ranks: ", all);
    TORCH_CHECK(torch::allclose(all[0], whole->named_buffers()[buffer.key()], 1e-3, 1e-4),
                buffer.key(), " is not that of the whole batch");
  }
  for (const auto& parameter : model->named_parameters()) {
    TORCH_CHECK(
        torch::allclose(parameter.value(), whole->named_parameters()[parameter.key()], 1e-3, 1e-4),
        parameter.key(), " is not that of the whole batch");
  }
}
