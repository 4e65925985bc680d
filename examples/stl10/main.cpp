/// Trains a network on STL-10: horarun -np 4 stl10 --data FOLDER
#include <stdexcept>

#include "examples/vision/train/options.h"

namespace {

constexpr int side = 224;  // pixels, to which images of 96x96 are resized

vision::TrainingOptions defaults() {
  vision::TrainingOptions options;
  options.data.workers = 4;
  options.optimizer.decay_all = true;
  options.output.print_freq = 10;
  return options;
}

// Values from -1 to 1, without augmentation.
vision::Transforms transforms(vision::DataKind kind) {
  if (kind != vision::DataKind::stl10) {
    throw std::runtime_error(
        "stl10 trains on STL-10's binary version; expected a folder with "
        "train_X.bin, which examples/stl10/fetch.sh makes");
  }
  const vision::TransformOptions both{
      .geometry = vision::Resize{{side, side}},
      .normalisation = {.mean = {0.5F, 0.5F, 0.5F}, .deviation = {0.5F, 0.5F, 0.5F}}};
  return {.training = both, .validation = both};
}

}  // namespace

int main(int argc, char** argv) {
  return vision::run_program(
      {.name = "stl10",
       .summary = "Trains a network on STL-10, one process a rank, under horarun.",
       .data = "folder with STL-10's binary version, or the one above it",
       .image_side = side,
       .source = "examples/stl10/fetch.sh FOLDER downloads STL-10 into FOLDER",
       .defaults = defaults(),
       .transforms = transforms},
      argc, argv);
}
