/// One rank throws while gradients are being averaged and its peer waits for the rest of them.
/// Argument: "caught" (main() returns 3 after the stack has unwound), "hook" (likewise, thrown by a
/// gradient's hook in the midst of backward()) or "uncaught".
#include <hora/torch.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace {

[[noreturn]] void give_up() {
  std::fputs("throwing now\n", stderr);
  throw std::runtime_error("thrown by the application");
}

void train(int argc, char** argv) {
  hora::Context world = hora::init(argc, argv);
  torch::nn::Linear model(512, 512);
  hora::broadcast_parameters(world, *model);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
                                       {.bucket_bytes = 4096});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto output = model->forward(torch::randn({4, 512})).sum();
    if (step == 2 && world.rank() == 0) {
      if (std::string(argv[1]) == "hook") {
        model->weight.register_hook([](const torch::Tensor&) { give_up(); });
      } else {
        // The bias's bucket only: the peer waits for the weight's.
        (model->bias.sum() + 0.0).backward();
        give_up();
      }
    }
    output.backward();
    optimizer.step();
  }
  std::fputs("not reached on either rank\n", stderr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: abandoned_program caught|hook|uncaught\n", stderr);
    return 2;
  }
  if (std::string(argv[1]) == "uncaught") train(argc, argv);
  try {
    train(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
  return 0;
}
