#include "frameworks/torch/gradient_bucket.h"

#include <ATen/Functions.h>
#include <hora/error.h>

#include <new>
#include <sstream>

#include "frameworks/torch/data_type.h"
#include "frameworks/torch/device_stream.h"

namespace hora {
namespace {

// A view with the parameter's strides: optimizers and autograd are fastest where they agree, and a
// gradient of the same strides is copied as one block.
at::Tensor make_view(const std::shared_ptr<Buffer>& memory, std::size_t offset,
                     const at::Tensor& parameter) {
  const auto options = at::TensorOptions(parameter.scalar_type()).device(parameter.device());
  auto* data = memory->data() + offset;
  const auto keep_alive = [memory](void*) {};
  if (parameter.is_non_overlapping_and_dense()) {
    return at::from_blob(data, parameter.sizes(), parameter.strides(), keep_alive, options);
  }
  return at::from_blob(data, parameter.sizes(), keep_alive, options);
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

void check_unchanged(const Parameter& parameter, const at::Tensor& view) {
  if (parameter.tensor.scalar_type() != view.scalar_type()) {
    refuse_change(parameter, "type", view.scalar_type(), parameter.tensor.scalar_type());
  }
  if (parameter.tensor.device() != view.device()) {
    refuse_change(parameter, "device", view.device(), parameter.tensor.device());
  }
  if (parameter.tensor.sizes() != view.sizes()) {
    refuse_change(parameter, "shape", view.sizes(), parameter.tensor.sizes());
  }
}

}  // namespace

bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) return false;
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

GradientBucket::GradientBucket(const Context& context, const BucketLayout& layout,
                               const std::vector<Parameter>& parameters)
    : layout_(layout),
      memory_(std::make_shared<Buffer>(
          context, layout.bytes,
          to_device(parameters[layout.places.front().gradient].tensor.device()))) {
  for (const GradientPlace& place : layout_.places) {
    views_.push_back(make_view(memory_, place.offset, parameters[place.gradient].tensor));
  }
}

const at::Tensor& GradientBucket::place_of(std::size_t place, const Parameter& parameter) const {
  const at::Tensor& own = views_[place];
  check_unchanged(parameter, own);
  const at::Tensor& gradient = parameter.tensor.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw Error(ErrorCode::invalid_argument,
                "Parameter '" + parameter.name +
                    "' has a sparse gradient; hora averages dense ones only: build its layer with "
                    "sparse(false), or leave it out of the wrapped optimizer",
                -1, parameter.name);
  }
  return own;
}

void GradientBucket::publish(std::size_t place, const Parameter& parameter, bool present) const {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!present) {
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
  return {memory_->data(),
          layout_.type,
          {elements},
          memory_->device(),
          current_stream(views_.front().device())};
}

at::Tensor GradientBucket::all_bytes() const {
  return at::from_blob(memory_->data(), {static_cast<std::int64_t>(layout_.bytes)},
                       at::TensorOptions(at::kByte).device(views_.front().device()));
}

}  // namespace hora
