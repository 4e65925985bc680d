/// Trains a network on CIFAR-10: horarun -np 4 cifar10 --data FOLDER
#include "examples/cifar10/data_source.h"
#include "examples/vision/train/program.h"

namespace {

vision::TrainingOptions defaults() {
  vision::TrainingOptions options;
  options.epochs = 4;
  options.network.stem = vision::Stem::cifar;
  options.optimizer = {.learning_rate = 0.05, .weight_decay = 5e-4, .decay_all = true};
  options.schedule = {.decay = vision::Decay::cosine, .warmup_share = 1.0 / 6};
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  return vision::run_program(
      {.description = {.name = "cifar10",
                       .summary = "Trains a network on CIFAR-10 with hora, one process a rank, "
                                  "under horarun.",
                       .data = "CIFAR-10 or CIFAR-100: the folder of the binary version; "
                               "or the digits",
                       .image_side = cifar10::side},
       .defaults = defaults(),
       .transforms = cifar10::transforms},
      argc, argv);
}
