/// Checkpoint and resume: training that was interrupted ends with the weights of one that was not.
#include <hora/torch.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace fs = std::filesystem;

// Saves after each epoch; an empty folder: nothing. "epochs" of them have been made at the end.
torch::Tensor train(const hora::Context& world, const std::string& folder, int epochs) {
  torch::nn::Linear model(8, 1);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.05));
  hora::broadcast_parameters(world, *model);
  hora::DistributedOptimizer optimizer(world, adam, model->named_parameters());
  torch::manual_seed(1 + world.rank());  // of the batches that this rank draws
  hora::CheckpointPosition at;
  std::optional<hora::Checkpoint> checkpoint;
  if (!folder.empty()) {
    checkpoint.emplace(world, hora::CheckpointOptions{.folder = folder});
    checkpoint->add_weights(*model);
    checkpoint->add_optimizer("optimizer", optimizer);
    checkpoint->add_random_state();
    at = checkpoint->load().value_or(at);
  }
  for (; at.epoch < epochs; ++at.epoch) {
    for (int step = 0; step < 4; ++step, ++at.step) {
      optimizer.zero_grad();
      (model->forward(torch::randn({16, 8})) - 1).square().mean().backward();
      optimizer.step();
    }
    if (checkpoint) checkpoint->save({.step = at.step, .epoch = at.epoch + 1});
  }
  if (checkpoint) checkpoint->wait();  // until the last one is on the disk
  return model->weight.detach();
}
int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  // Rank 0's choice. Nodes need not share it: at resume all get what any of them has.
  const std::string folder = hora::broadcast_object(
      world, (fs::temp_directory_path() / ("checkpoint." + std::to_string(getpid()))).string());
  torch::manual_seed(1);
  const torch::Tensor uninterrupted = train(world, "", 6);
  torch::manual_seed(1);
  train(world, folder, 3);
  // Begins with other weights and no state, and goes on with those of the files.
  TORCH_CHECK(torch::equal(train(world, folder, 6), uninterrupted), "resumed training differs");
  hora::barrier(world);
  if (world.local_rank() == 0) fs::remove_all(folder);
}
