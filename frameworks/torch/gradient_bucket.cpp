#include "frameworks/torch/gradient_bucket.h"

#include <ATen/Functions.h>
#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>

#include "frameworks/torch/data_type.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

std::vector<std::byte> bytes_of_one(DataType type) {
  const at::Tensor one = at::ones({1}, to_scalar_type(type));
  std::vector<std::byte> bytes(size_of(type));
  std::memcpy(bytes.data(), one.data_ptr(), bytes.size());
  return bytes;
}

// A view with the parameter's strides: optimizers and autograd are fastest where they agree, and a
// gradient of the same strides is copied as one block.
at::Tensor make_view(const std::shared_ptr<Buffer>& memory, std::size_t offset,
                     const at::Tensor& parameter) {
  const auto options = at::TensorOptions(parameter.scalar_type());
  auto* data = memory->data() + offset;
  const auto keep_alive = [memory](void*) {};
  if (parameter.is_non_overlapping_and_dense()) {
    return at::from_blob(data, parameter.sizes(), parameter.strides(), keep_alive, options);
  }
  return at::from_blob(data, parameter.sizes(), keep_alive, options);
}

// Dense memory in the same order of elements.
bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) return false;
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

template <class A, class B>
[[noreturn]] void refuse_change(const Parameter& parameter, const char* what, const A& was,
                                const B& is) {
  std::ostringstream text;
  text << "Parameter '" << parameter.name << "' had " << what << " " << was
       << " when DistributedOptimizer was constructed and has " << is
       << " now; construct it after the last change, such as module->to(type)";
  throw Error(ErrorCode::invalid_argument, text.str(), -1, parameter.name);
}

}  // namespace

void check_unchanged(const Parameter& parameter, const at::Tensor& view) {
  if (parameter.tensor.scalar_type() != view.scalar_type()) {
    refuse_change(parameter, "type", view.scalar_type(), parameter.tensor.scalar_type());
  }
  if (parameter.tensor.sizes() != view.sizes()) {
    refuse_change(parameter, "shape", view.sizes(), parameter.tensor.sizes());
  }
}

GradientBucket::GradientBucket(const Context& context, const BucketLayout& layout,
                               const std::vector<Parameter>& parameters)
    : layout_(layout),
      memory_(std::make_shared<Buffer>(context, layout.bytes)),
      one_(bytes_of_one(layout.type)) {
  // Padding is summed as well: stale bytes could be NaN or slow denormals.
  std::memset(memory_->data(), 0, memory_->size());
  for (const GradientPlace& place : layout_.places) {
    views_.push_back(make_view(memory_, place.offset, parameters[place.gradient].tensor));
  }
}

void GradientBucket::store(std::size_t place, const Parameter& parameter) {
  const at::Tensor& own = views_[place];
  check_unchanged(parameter, own);
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    std::memset(memory_->data() + layout_.places[place].offset, 0, own.nbytes());
    mark(place, false);
    return;
  }
  if (gradient.layout() != at::kStrided) {
    throw Error(ErrorCode::invalid_argument,
                "Parameter '" + parameter.name +
                    "' has a sparse gradient; hora averages dense ones only: build its layer with "
                    "sparse(false), or leave it out of the wrapped optimizer",
                -1, parameter.name);
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

void GradientBucket::publish(std::size_t place, const Parameter& parameter) const {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!is_present_anywhere(place)) {
    gradient.reset();
  } else if (!gradient.is_same(views_[place])) {
    gradient = views_[place];
  }
}

void GradientBucket::give_up_memory() noexcept {
  // The reference is not counted down again. Without the memory for it there is nothing to be
  // saved.
  static_cast<void>(new (std::nothrow) std::shared_ptr<Buffer>(memory_));
}

TensorView GradientBucket::view() const {
  const auto elements = static_cast<std::int64_t>(layout_.bytes / size_of(layout_.type));
  return {memory_->data(), layout_.type, {elements}, {}};
}

void GradientBucket::mark(std::size_t place, bool present) {
  std::byte* lane = memory_->data() + layout_.presence_offset + place * one_.size();
  if (present) {
    std::memcpy(lane, one_.data(), one_.size());
  } else {
    std::memset(lane, 0, one_.size());
  }
}

bool GradientBucket::is_present_anywhere(std::size_t place) const {
  // Averaging scales the lane, and it cannot round to zero: tested for any set bit.
  const std::byte* lane = memory_->data() + layout_.presence_offset + place * one_.size();
  return std::any_of(lane, lane + one_.size(),
                     [](std::byte value) { return value != std::byte{}; });
}

}  // namespace hora
