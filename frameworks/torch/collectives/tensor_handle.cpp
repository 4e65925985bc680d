#include <ATen/core/grad_mode.h>

#include <utility>

#include "frameworks/torch/collectives/pending_tensor.h"
#include "frameworks/torch/device_stream.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

PendingTensor& held(const std::unique_ptr<PendingTensor>& pending) {
  if (!pending) {
    throw Error(ErrorCode::invalid_use,
                "there is nothing to wait for: this tensor's handle was waited for already, or "
                "moved from");
  }
  return *pending;
}

}  // namespace

torch::Tensor PendingInPlace::wait() {
  void* const stream = current_stream(contiguous_.device());
  handle_.wait(stream);
  keep_for_stream(contiguous_, stream);
  if (contiguous_.is_same(target_)) {
    note_written(target_);
  } else {
    const torch::NoGradGuard no_grad;
    target_.copy_(contiguous_);
  }
  return target_;
}

TensorHandle::TensorHandle(std::unique_ptr<PendingTensor> pending) noexcept
    : pending_(std::move(pending)) {}
TensorHandle::TensorHandle(TensorHandle&&) noexcept = default;
TensorHandle& TensorHandle::operator=(TensorHandle&&) noexcept = default;
TensorHandle::~TensorHandle() = default;

bool TensorHandle::ready() const {
  return !pending_ || pending_->ready();
}

torch::Tensor TensorHandle::wait() {
  held(pending_);
  return std::exchange(pending_, nullptr)->wait();
}

AlltoallHandle::AlltoallHandle(ResultHandle handle, torch::Tensor sent) noexcept
    : sent_(std::move(sent)), handle_(std::move(handle)) {}

AlltoallHandle& AlltoallHandle::operator=(AlltoallHandle&& other) noexcept {
  handle_ = std::move(other.handle_);  // first: it waits while what it reads is still held
  sent_ = std::move(other.sent_);
  return *this;
}

AlltoallResult AlltoallHandle::wait() {
  const Result result = handle_.wait();
  keep_for_stream(sent_, current_stream(sent_.device()));
  sent_.reset();
  return {to_tensor(result), result.rows()};
}

}  // namespace hora
