/// A bucket in the node's shared memory: each gradient is copied in as soon as it comes.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "frameworks/torch/data_type.h"
#include "frameworks/torch/gradient_bucket.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

std::vector<std::byte> bytes_of_one(DataType type) {
  const at::Tensor one = at::ones({1}, to_scalar_type(type));
  std::vector<std::byte> bytes(size_of(type));
  std::memcpy(bytes.data(), one.data_ptr(), bytes.size());
  return bytes;
}

/// Presence travels in a lane at the bucket's end (see BucketLayout).
class HostBucket final : public GradientBucket {
 public:
  HostBucket(const Context& context, const BucketLayout& layout,
             const std::vector<Parameter>& parameters)
      : GradientBucket(context, layout, parameters), one_(bytes_of_one(layout.type)) {
    // Padding is summed as well: stale bytes could be NaN or slow denormals.
    std::memset(data(), 0, layout.bytes);
  }

  void store(std::size_t place, const Parameter& parameter) override {
    const at::Tensor& own = place_of(place, parameter);
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) {
      std::memset(own.data_ptr(), 0, own.nbytes());
      mark(place, false);
      return;
    }
    if (!gradient.is_same(own) && gradient.data_ptr() != own.data_ptr()) {
      if (same_memory_order(gradient, own)) {
        stream_copy(static_cast<std::byte*>(own.data_ptr()),
                    static_cast<const std::byte*>(gradient.data_ptr()), own.nbytes());
      } else {
        own.copy_(gradient);
      }
    }
    gradient = own;
    mark(place, true);
  }

  void pack(const std::string&) override {}

  std::optional<bool> present_anywhere(std::size_t place) const override {
    // Averaging scales the lane, and it cannot round to zero: tested for any set bit.
    const std::byte* mark = lane(place);
    return std::any_of(mark, mark + one_.size(),
                       [](std::byte value) { return value != std::byte{}; });
  }

 private:
  std::byte* lane(std::size_t place) const {
    return data() + layout().presence_offset + place * one_.size();
  }
  void mark(std::size_t place, bool present) {
    if (present) {
      std::memcpy(lane(place), one_.data(), one_.size());
    } else {
      std::memset(lane(place), 0, one_.size());
    }
  }

  std::vector<std::byte> one_;  // the bucket's type's 1
};

}  // namespace

std::unique_ptr<GradientBucket> make_host_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters) {
  return std::make_unique<HostBucket>(context, layout, parameters);
}

}  // namespace hora
