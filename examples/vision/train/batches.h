/// A data set's batches where the network computes.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "examples/vision/data/copied_batches.h"
#include "examples/vision/data/dataset.h"
#include "examples/vision/data/loader.h"
#include "examples/vision/data/tensor_batch.h"
#include "examples/vision/data/transform.h"

namespace vision {

struct DeviceBatch {
  TensorBatch tensors;  ///< on the device, for its current stream
  /// The samples, ascending, that hold another image, because theirs was bad.
  std::vector<std::size_t> replaced;
};

/// Thread rule: one thread. Errors: as Loader's.
class Batches {
 public:
  /// `data` must outlive it; the loader's allocator is chosen by the device.
  Batches(const Dataset& data, const TransformOptions& transform, LoaderOptions loader,
          const torch::Device& device);

  /// Begins an epoch at batch `first` of `samples`.
  void start(std::uint64_t epoch, std::vector<std::size_t> samples, std::size_t first = 0);
  /// Nothing after the epoch's last batch.
  std::optional<DeviceBatch> next();
  /// Seconds in which the caller had no data, since start().
  double waited() const { return loader_.waited(); }

 private:
  Layout layout_;
  torch::Device device_;
  Loader loader_;
  CopiedBatches copies_;
};

}  // namespace vision
