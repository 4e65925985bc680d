#include "examples/cifar10/data_source.h"

#include <stdexcept>

namespace cifar10 {

const DataSource& source_of(vision::DataKind kind) {
  static const DataSource cifar10{
      .normalisation = {{0.4914F, 0.4822F, 0.4465F}, {0.2023F, 0.1994F, 0.2010F}},
      .crop_padding = 4,
      .flip = true,
  };
  static const DataSource cifar100{
      .normalisation = {{0.5071F, 0.4865F, 0.4409F}, {0.2673F, 0.2564F, 0.2762F}},
      .crop_padding = 4,
      .flip = true,
  };
  // Mean and deviation are those of all 1,797 images after scaling. A digit fills its image, so
  // that a crop would cut it, and a mirrored one is another sign.
  static const DataSource digits{
      .normalisation = {{0.3052F, 0.3052F, 0.3052F}, {0.3236F, 0.3236F, 0.3236F}},
      .crop_padding = 0,
      .flip = false,
  };
  switch (kind) {
    case vision::DataKind::cifar10:
      return cifar10;
    case vision::DataKind::cifar100:
      return cifar100;
    case vision::DataKind::digits:
      return digits;
    default:
      throw std::runtime_error(
          "cifar10 trains on images of 32 x 32 pixels; expected CIFAR-10, "
          "CIFAR-100 or the digits");
  }
}

vision::Transforms transforms(vision::DataKind kind) {
  const DataSource& source = source_of(kind);
  return {.training = {.geometry =
                           vision::RandomCrop{.size = {side, side}, .padding = source.crop_padding},
                       .flip = source.flip,
                       .normalisation = source.normalisation},
          .validation = {.geometry = vision::Resize{{side, side}},
                         .normalisation = source.normalisation}};
}

}  // namespace cifar10
