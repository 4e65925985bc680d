#include "frameworks/torch/optimizer/buffer_broadcast.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "core/plan/plan.h"
#include "frameworks/torch/data_type.h"
#include "frameworks/torch/device_stream.h"

namespace hora {

BufferBroadcast::BufferBroadcast(const Peers& peers, std::string name,
                                 std::vector<at::Tensor> buffers)
    : peers_(peers), name_(std::move(name)), buffers_(std::move(buffers)) {
  if (peers_.size == 1 || buffers_.empty()) return;
  std::size_t bytes = 0;
  for (const at::Tensor& buffer : buffers_) bytes += align_up(buffer.nbytes());
  memory_ = Buffer(peers_.context, bytes, to_device(buffers_.front().device()));
  std::byte* place = memory_.data();
  for (const at::Tensor& buffer : buffers_) {
    copies_.push_back(at::from_blob(place, buffer.sizes(), buffer.options()));
    place += align_up(buffer.nbytes());
  }
}

void BufferBroadcast::begin() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  if (peers_.place == 0) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) copies_[i].copy_(buffers_[i]);
  }
  const TensorView bytes{memory_.data(),
                         DataType::uint8,
                         {static_cast<std::int64_t>(memory_.size())},
                         memory_.device(),
                         current_stream(buffers_.front().device())};
  handle_ = broadcast_async(peers_.context, bytes,
                            {.name = name_, .root = peers_.first, .process_set = peers_.set});
}

void BufferBroadcast::end() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  handle_.wait(current_stream(buffers_.front().device()));
  if (peers_.place == 0) return;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(copies_[i]);
}

}  // namespace hora
