/// Trains a network on CIFAR-10: horarun -np 4 cifar10 --data FOLDER
#include <stdexcept>

#include "examples/vision/train/options.h"

namespace {

constexpr int side = 32;  // pixels

vision::TrainingOptions defaults() {
  vision::TrainingOptions options;
  options.epochs = 4;
  options.network.stem = vision::Stem::cifar;
  options.optimizer = {.learning_rate = 0.05, .weight_decay = 5e-4, .decay_all = true};
  options.schedule = {.decay = vision::Decay::cosine, .warmup_share = 1.0 / 6};
  return options;
}

vision::Normalisation normalisation(vision::DataKind kind) {
  switch (kind) {
    case vision::DataKind::cifar10:
      return {{0.4914F, 0.4822F, 0.4465F}, {0.2023F, 0.1994F, 0.2010F}};
    case vision::DataKind::cifar100:
      return {{0.5071F, 0.4865F, 0.4409F}, {0.2673F, 0.2564F, 0.2762F}};
    case vision::DataKind::digits:  // of all 1,797 images after scaling
      return {{0.3052F, 0.3052F, 0.3052F}, {0.3236F, 0.3236F, 0.3236F}};
    default:
      throw std::runtime_error(
          "cifar10 trains on images of 32 x 32 pixels; expected CIFAR-10, CIFAR-100 or the digits");
  }
}

// A digit fills its image, so that a crop would cut it, and a mirrored one is another sign.
vision::Transforms transforms(vision::DataKind kind) {
  const bool photographs = kind != vision::DataKind::digits;
  return {.training = {.geometry =
                           vision::RandomCrop{.size = {side, side}, .padding = photographs ? 4 : 0},
                       .flip = photographs,
                       .normalisation = normalisation(kind)},
          .validation = {.geometry = vision::Resize{{side, side}},
                         .normalisation = normalisation(kind)}};
}

}  // namespace

int main(int argc, char** argv) {
  return vision::run_program(
      {.name = "cifar10",
       .summary = "Trains a network on CIFAR-10, one process a rank, under horarun.",
       .data = "CIFAR-10 or CIFAR-100: the folder of the binary version; or the digits",
       .image_side = side,
       .defaults = defaults(),
       .transforms = transforms},
      argc, argv);
}
