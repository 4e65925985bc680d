#include <ATen/core/grad_mode.h>
#include <hora/torch.h>

#include <utility>

#include "frameworks/torch/data_type.h"
#include "frameworks/torch/device_stream.h"

namespace hora {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "Tensor '" + name + "': " + what, -1, name);
}

void check_usable(const std::string& name, const torch::Tensor& tensor) {
  if (!tensor.defined()) refuse(name, "is undefined; expected one with memory");
  if (tensor.layout() != torch::kStrided) refuse(name, "is sparse; expected a dense one");
}

TensorView view_of(const std::string& name, const torch::Tensor& contiguous) {
  const auto type = to_data_type(contiguous.scalar_type());
  if (!type) {
    refuse(name, std::string("has type ") + torch::toString(contiguous.scalar_type()) +
                     "; expected float16, bfloat16, float32, float64, int8, int16, int32, int64, "
                     "uint8 or bool");
  }
  return {contiguous.data_ptr(), *type, contiguous.sizes().vec(), to_device(contiguous.device()),
          current_stream(contiguous.device())};
}

// The memory was written behind autograd's back: tell it, so that a backward that saved the old
// values fails instead of using the new ones.
void note_written(const torch::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

template <class Collective, class Options>
TensorHandle start(Collective collective, const Context& context, torch::Tensor tensor,
                   const Options& options) {
  check_usable(options.name, tensor);
  const torch::NoGradGuard no_grad;
  torch::Tensor contiguous = tensor.contiguous();
  Handle handle = collective(context, view_of(options.name, contiguous), options);
  return {std::move(handle), std::move(contiguous), std::move(tensor)};
}

}  // namespace

torch::Device local_device(const Context& context) {
  return to_torch(context.device());
}

TensorHandle::TensorHandle(Handle handle, torch::Tensor contiguous, torch::Tensor target)
    : contiguous_(std::move(contiguous)), target_(std::move(target)), handle_(std::move(handle)) {}

TensorHandle& TensorHandle::operator=(TensorHandle&& other) noexcept {
  handle_ = std::move(other.handle_);  // first: it waits while its memory is still held
  contiguous_ = std::move(other.contiguous_);
  target_ = std::move(other.target_);
  return *this;
}

torch::Tensor TensorHandle::wait() {
  void* const stream = current_stream(contiguous_.device());
  handle_.wait(stream);
  keep_for_stream(contiguous_, stream);
  if (contiguous_.is_same(target_)) {
    note_written(target_);
  } else {
    const torch::NoGradGuard no_grad;
    target_.copy_(contiguous_);
  }
  contiguous_.reset();
  return std::move(target_);
}

TensorHandle allreduce_async_(const Context& context, torch::Tensor tensor,
                              const AllreduceOptions& options) {
  return start([](const auto&... arguments) { return hora::allreduce_async(arguments...); },
               context, std::move(tensor), options);
}

TensorHandle broadcast_async_(const Context& context, torch::Tensor tensor,
                              const BroadcastOptions& options) {
  return start([](const auto&... arguments) { return hora::broadcast_async(arguments...); },
               context, std::move(tensor), options);
}

torch::Tensor& allreduce_(const Context& context, torch::Tensor& tensor,
                          const AllreduceOptions& options) {
  allreduce_async_(context, tensor, options).wait();
  return tensor;
}

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options) {
  check_usable(options.name, tensor);
  return allreduce_async_(context, tensor.detach().clone(), options).wait();
}

torch::Tensor& broadcast_(const Context& context, torch::Tensor& tensor,
                          const BroadcastOptions& options) {
  broadcast_async_(context, tensor, options).wait();
  return tensor;
}

}  // namespace hora
