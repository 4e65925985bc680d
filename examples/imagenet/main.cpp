/// Trains a network on ImageNet, or on any images in folders by their classes:
/// horarun -np 8 imagenet FOLDER
#include <stdexcept>

#include "examples/vision/train/options.h"

namespace {

constexpr int side = 224;  // pixels

// One rank alone trains as PyTorch's ImageNet example does.
vision::TrainingOptions defaults() {
  vision::TrainingOptions options;
  options.data.batch = 256;
  options.data.workers = 4;
  options.optimizer.decay_all = true;
  options.output.print_freq = 10;
  return options;
}

vision::Transforms transforms(vision::DataKind kind) {
  if (kind != vision::DataKind::image_folder) {
    throw std::runtime_error(
        "imagenet trains on JPEG and PNG files; expected a folder with "
        "train/CLASS/... and val/CLASS/...");
  }
  return {.training = {.geometry = vision::RandomResizedCrop{.size = side},
                       .flip = true,
                       .normalisation = vision::imagenet_normalisation},
          .validation = {.geometry = vision::CentreCrop{.shorter_side = 256, .size = side},
                         .normalisation = vision::imagenet_normalisation}};
}

}  // namespace

int main(int argc, char** argv) {
  return vision::run_program(
      {.name = "imagenet",
       .summary = "Trains a network on ImageNet, one process a rank, under horarun.",
       .data = "folder with train/CLASS/... and val/CLASS/... of JPEG and PNG "
               "files; see examples/imagenet/sort_validation.py",
       .image_side = side,
       .defaults = defaults(),
       .transforms = transforms},
      argc, argv);
}
