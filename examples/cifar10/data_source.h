/// The data of the example: what is known of each set beside its images.
#pragma once

#include "examples/vision/data/data_sets.h"
#include "examples/vision/data/transform.h"
#include "examples/vision/train/program.h"

namespace cifar10 {

inline constexpr int side = 32;  ///< pixels

struct DataSource {
  vision::Normalisation normalisation;
  int crop_padding;  ///< pixels of black around a training image before its random crop
  bool flip;         ///< whether a mirrored image is still of its class
};

/// Of CIFAR-10, CIFAR-100 and the digits; std::runtime_error for others, whose images are larger.
const DataSource& source_of(vision::DataKind kind);

/// In training random crops and flips, where the source has them; in validation the images as they
/// are. Throws as source_of().
vision::Transforms transforms(vision::DataKind kind);

}  // namespace cifar10
