/// Checkpoint and resume: training that was interrupted ends with the weights of one that was not.
#include <hora/torch.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace fs = std::filesystem;

// A file named `path` is always whole: it is written under another name, and rename() is atomic.
void save(const fs::path& path, torch::nn::Linear& model, torch::optim::Adam& adam, int epochs) {
  torch::serialize::OutputArchive archive, weights, state;
  model->save(weights);
  adam.save(state);
  archive.write("model", weights);
  archive.write("optimizer", state);
  archive.write("epochs", torch::tensor(epochs));
  archive.save_to(path.string() + ".new");
  fs::rename(path.string() + ".new", path);
}
int load(const fs::path& path, torch::nn::Linear& model, torch::optim::Adam& adam) {
  torch::serialize::InputArchive archive, weights, state;
  archive.load_from(path.string());
  archive.read("model", weights);
  archive.read("optimizer", state);
  model->load(weights);
  adam.load(state);
  torch::Tensor epochs;
  archive.read("epochs", epochs);
  return epochs.item<int>();
}
// Rank 0 alone reads and writes the file; the other ranks get what it holds by broadcast.
torch::Tensor train(const hora::Context& world, const fs::path& path, int epochs) {
  torch::nn::Linear model(8, 1);
  torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.05));
  int epoch = world.rank() == 0 && fs::exists(path) ? load(path, model, adam) : 0;
  hora::broadcast(world, hora::view(epoch), {.name = "epoch"});
  hora::broadcast_parameters(world, *model);
  hora::broadcast_optimizer_state(world, adam);
  hora::DistributedOptimizer optimizer(world, adam, model->named_parameters());
  for (; epoch < epochs; ++epoch) {
    torch::manual_seed(1000 * epoch + world.rank());  // what is drawn depends on epoch and rank
    optimizer.zero_grad();
    (model->forward(torch::randn({16, 8})) - 1).square().mean().backward();
    optimizer.step();
    if (world.rank() == 0 && !path.empty()) save(path, model, adam, epoch + 1);
  }
  return model->weight.detach();
}
int main(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  const fs::path path = fs::temp_directory_path() / ("checkpoint." + std::to_string(getpid()));
  torch::manual_seed(1);
  const torch::Tensor uninterrupted = train(world, "", 6);
  torch::manual_seed(1);
  train(world, path, 3);
  // Begins with other weights and no state, and overwrites both by the file's.
  TORCH_CHECK(torch::equal(train(world, path, 6), uninterrupted), "resumed training differs");
  fs::remove(path);
}
