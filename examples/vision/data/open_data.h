/// Which data set lies where.
#pragma once

#include <filesystem>
#include <stdexcept>

#include "examples/vision/data/data_sets.h"

namespace vision {

/// There is no data set, not even a damaged one.
class NoData : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Opens what `path` holds, itself or in the folder that the published archive unpacks to:
///
/// | it is, or holds | data set |
/// |---|---|
/// | data_batch_1.bin, cifar-10-batches-bin/ | CIFAR-10, binary version, or the digits |
/// | train.bin, cifar-100-binary/ | CIFAR-100, binary version |
/// | train_X.bin, stl10_binary/ | STL-10 |
/// | train/ and val/ | folders of classes: ImageNet |
///
/// Throws NoData where it holds none of these, with what it looked for, std::runtime_error for
/// CIFAR-10's Python version (cifar10/from_python.py converts it), and as their own functions do.
DataSets open_data(const std::filesystem::path& path);

}  // namespace vision
