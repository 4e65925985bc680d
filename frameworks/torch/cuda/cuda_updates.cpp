/// hora::optim's step on GPUs.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "frameworks/torch/optim/device_updates.h"
#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

/// One kernel's.
struct EqualUpdates {
  at::Device device;
  DataType type;
  std::variant<SgdStep, AdamStep> step;
  std::vector<UpdatePiece> pieces;
};

class CudaUpdates final : public DeviceUpdates {
 public:
  void add(const ParameterUpdate& update, const at::Tensor& parameter) override {
    UpdatePiece piece{update.memory.parameter,
                      parameter.grad().data_ptr(),
                      {update.memory.state[0], update.memory.state[1], update.memory.state[2]},
                      parameter.numel()};
    // Mostly all are equal: the last group is looked at first.
    const auto found = std::find_if(groups_.rbegin(), groups_.rend(), [&](const auto& group) {
      return group.device == parameter.device() && group.type == update.type &&
             group.step == update.step;
    });
    if (found != groups_.rend()) {
      found->pieces.push_back(piece);
    } else {
      groups_.push_back({parameter.device(), update.type, update.step, {piece}});
    }
  }

  void run() override {
    for (const EqualUpdates& group : groups_) {
      const c10::cuda::CUDAGuard device(group.device);
      const auto stream = c10::cuda::getCurrentCUDAStream(group.device.index());
      cuda_check(
          cuda_runtime(),
          cuda_runtime().batched_update({group.pieces, group.type, group.step}, stream.stream()),
          "the launch of the update kernel");
    }
    groups_.clear();
  }

 private:
  std::vector<EqualUpdates> groups_;
};

}  // namespace

std::unique_ptr<DeviceUpdates> make_device_updates(const at::Device& device) {
  return device.is_cuda() ? std::make_unique<CudaUpdates>() : nullptr;
}

}  // namespace hora::internal
