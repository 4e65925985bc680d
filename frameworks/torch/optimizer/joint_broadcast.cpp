#include "frameworks/torch/optimizer/joint_broadcast.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "core/base/checked.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

JointBroadcast::JointBroadcast(const Peers& peers, std::string name,
                               std::vector<at::Tensor> tensors)
    : peers_(peers), name_(std::move(name)), tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) forms_.emplace_back(tensor, "Buffer");
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors_) bytes += align_up(tensor.nbytes());
  if (peers_.size == 1 || bytes == 0) return;
  const at::Device device = working_device(peers_.context, tensors_);
  memory_ = Buffer(peers_.context, bytes, to_device(device));
  std::byte* place = memory_.data();
  for (const at::Tensor& tensor : tensors_) {
    copies_.push_back(tensor_on(nullptr, place, tensor.scalar_type(), device, tensor.sizes()));
    place += align_up(tensor.nbytes());
  }
}

void JointBroadcast::begin(int root) {
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    forms_[i].check({std::to_string(i), tensors_[i]});
  }
  if (copies_.empty()) return;
  if (handle_.valid()) handle_.wait();
  is_root_ = peers_.context.rank() == root;
  const at::NoGradGuard no_grad;
  if (is_root_) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) copies_[i].copy_(tensors_[i]);
  }
  const TensorView bytes{memory_.data(),
                         DataType::uint8,
                         {static_cast<std::int64_t>(memory_.size())},
                         memory_.device(),
                         current_stream(copies_.front().device())};
  handle_ = broadcast_async(peers_.context, bytes,
                            {.name = name_, .root = root, .process_set = peers_.set});
}

void JointBroadcast::end() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  handle_.wait(current_stream(copies_.front().device()));
  if (is_root_) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(copies_[i]);
}

}  // namespace hora::internal
