/// Batches as LibTorch's tensors.
#pragma once

#include <torch/types.h>

#include "examples/vision/data/batch.h"
#include "examples/vision/data/copied_batches.h"
#include "examples/vision/data/image.h"
#include "examples/vision/data/transform.h"

namespace vision {

struct TensorBatch {
  torch::Tensor images;  ///< float32, samples x 3 x height x width, channels last with that layout
  torch::Tensor labels;  ///< int64, one for each sample
};

/// For LoaderOptions::allocator: page-locked memory, from which copies to a GPU are fastest, where
/// `device` is one; else pageable.
BatchAllocator allocator_for(const torch::Device& device);

/// On the CPU the tensors lie in the batch's memory, which goes back to the loader with the last
/// tensor that uses it. To a GPU they are copied, in the order of its current stream; the copy may
/// go on after the return, and `copies` keeps the batch until it has ended. `size` and `layout` are
/// the transform's.
TensorBatch to_tensors(Batch batch, ImageSize size, Layout layout, const torch::Device& device,
                       CopiedBatches& copies);

}  // namespace vision
