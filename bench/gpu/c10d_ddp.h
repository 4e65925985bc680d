/// The reducer of DistributedDataParallel of the same LibTorch, to compare with.
#pragma once

#include <torch/nn/module.h>

#include <memory>

namespace bench {

/// c10d::Reducer on ProcessGroupNCCL, in a group of one rank, with gradients that are views of its
/// buckets (gradient_as_bucket_view) and otherwise default options. Thread rule: one thread.
class DdpReducer {
 public:
  virtual ~DdpReducer() = default;
  /// Makes gradients undefined. Before each forward; after backward() gradients are averages.
  virtual void begin() = 0;
};

/// Null where this LibTorch has none that can be compiled (c10d_ddp_absent.cpp). The parameters of
/// `module` are on the GPU. Throws c10::Error.
std::unique_ptr<DdpReducer> make_ddp_reducer(const torch::nn::Module& module);

}  // namespace bench
