/// The data of the example: what is known of each set beside its images.
#pragma once

#include <cstddef>
#include <filesystem>

#include "examples/vision/data/data_sets.h"
#include "examples/vision/data/transform.h"

namespace cifar10 {

inline constexpr int side = 32;  ///< pixels

struct DataSource {
  vision::Normalisation normalisation;
  int crop_padding;  ///< pixels of black around a training image before its random crop
  bool flip;         ///< whether a mirrored image is still of its class
};

/// Of CIFAR-10, CIFAR-100 and the digits; std::runtime_error for others, whose images are larger.
const DataSource& source_of(vision::DataKind kind);

/// Random crops and flips, where the source has them.
vision::TransformOptions training_transform(const DataSource& source, vision::Layout layout);
/// The images as they are, normalised.
vision::TransformOptions validation_transform(const DataSource& source, vision::Layout layout);

struct Data {
  const DataSource& source;
  vision::DataSets sets;  ///< of planar images, side x side
};

/// What vision::open_data() finds in the folder, at most `limit` images each (0: all). Throws
/// std::runtime_error as open_data() and source_of() do.
Data load_data(const std::filesystem::path& folder, std::size_t limit);

}  // namespace cifar10
