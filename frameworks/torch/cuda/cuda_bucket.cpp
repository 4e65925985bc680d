/// A bucket on a GPU: gradients stay where autograd has put them until the last one has come; then
/// one kernel copies them all.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <nvtx3/nvtx3.hpp>
#include <utility>

#include "frameworks/torch/device_stream.h"
#include "frameworks/torch/gradient_bucket.h"
#include "ops/cuda/check.h"

namespace hora {
namespace {

class CudaBucket final : public GradientBucket {
 public:
  CudaBucket(const Context& context, const BucketLayout& layout,
             const std::vector<Parameter>& parameters)
      : GradientBucket(context, layout, parameters) {
    // Padding is summed as well: stale bytes could be NaN.
    all_bytes().zero_();
  }

  void store(std::size_t place, const Parameter& parameter) override {
    const at::Tensor& own = place_of(place, parameter);
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    note_stream();
    if (!gradient.defined()) {
      pieces_.push_back({nullptr, own.data_ptr(), own.numel()});
      return;
    }
    if (gradient.data_ptr() != own.data_ptr()) {
      if (same_memory_order(gradient, own)) {
        pieces_.push_back({gradient.data_ptr(), own.data_ptr(), own.numel()});
        sources_.push_back(gradient);
      } else {
        own.copy_(gradient);
      }
    }
    gradient = own;
  }

  void pack(const std::string& name) override {
    const nvtx3::scoped_range range("pack " + name);
    const auto stream = c10::cuda::getCurrentCUDAStream();
    for (const auto& other : streams_) {
      if (other == stream) continue;
      at::cuda::CUDAEvent event;
      event.record(other);
      event.block(stream);
    }
    if (!pieces_.empty()) {
      const DataType type = layout().type;
      const BatchedCopy copy{.pieces = pieces_, .source_type = type, .target_type = type};
      cuda_check(cuda_runtime(), cuda_runtime().batched_copy(copy, stream.stream()),
                 "the kernel that packs gradients");
    }
    // Freed in the order of the stream that has read them: LibTorch reuses memory in that order.
    for (const at::Tensor& source : sources_) keep_for_stream(source, stream.stream());
    pieces_.clear();
    sources_.clear();
    streams_.clear();
  }

  std::optional<bool> present_anywhere(std::size_t) const override { return std::nullopt; }

 private:
  /// A bucket's gradients may come from several streams.
  void note_stream() {
    const auto stream = c10::cuda::getCurrentCUDAStream();
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }

  std::vector<CopyPiece> pieces_;
  std::vector<at::Tensor> sources_;  ///< what pieces_ point to
  std::vector<c10::cuda::CUDAStream> streams_;
};

}  // namespace

std::unique_ptr<GradientBucket> make_cuda_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters) {
  return std::make_unique<CudaBucket>(context, layout, parameters);
}

}  // namespace hora
