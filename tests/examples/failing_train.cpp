/// Is ./train where README.md shows failures: three epochs of allreduces, in the second
/// of which the fault that the variable TRAIN_FAULT names happens, some time after the first one's
/// output.
#include <hora/hora.h>
#include <hora/phase.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

void fail(const std::string& fault, int rank) {
  if (fault == "killed" && rank == 1) std::raise(SIGKILL);
  if (fault == "throws" && rank == 2) {
    throw std::runtime_error("data/shard-2.bin: record 1471 is cut short");
  }
  if (fault == "skips" && rank == 1) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

int main(int argc, char** argv) {
  const char* const variable = std::getenv("TRAIN_FAULT");
  const std::string fault = variable == nullptr ? "" : variable;
  const hora::Context world = hora::init(argc, argv);
  std::vector<float> gradient(1000, 1.0F);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    hora::note_phase(world, "epoch " + std::to_string(epoch));
    for (int step = 0; step < 20; ++step) {
      if (epoch == 2 && step == 15) fail(fault, world.rank());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      hora::allreduce(world, hora::view(gradient), {.name = "layer4.weight"});
    }
    if (world.rank() == 0) std::cout << "epoch " << epoch << " done" << std::endl;
  }
}
