/// One parameter's step as a pass over memory: what LibTorch's options and state say, as the
/// kernels take it.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/types.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "ops/local/kernels.h"

namespace hora::internal {

/// Values and memory of one step of one parameter; gradients are given apart.
struct ParameterUpdate {
  DataType type = DataType::float32;
  std::variant<SgdStep, AdamStep> step;
  UpdateMemory memory;  ///< parameter and state
  std::size_t count = 0;

  /// All elements, in CPU memory, by LibTorch's threads. `gradients`, `scales` and `copies` as in
  /// UpdateMemory.
  void run(std::span<const std::byte* const> gradients, Scales scales = {},
           std::span<std::byte* const> copies = {}) const;
};

/// Whether the tensor is of float32 or float64, and dense in memory of the CPU or a GPU.
bool has_plain_memory(const at::Tensor& tensor);
/// That, on the CPU.
bool takes_one_pass(const at::Tensor& tensor);
/// Whether the tensor has plain memory as well, on the device and in the type and memory order of
/// `parameter`, which has.
bool lies_like(const at::Tensor& tensor, const at::Tensor& parameter);

/// Whether begin_update() would give a step. Changes nothing.
bool can_update(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
                const at::Tensor& parameter);
/// The step that the parameter's next one is: counts it, and makes the state that it has not yet,
/// as LibTorch's optimizer does. Nothing, and nothing is changed, where one pass cannot do it:
/// has_plain_memory() is false, the state lies otherwise, or the options are not those of SGD, Adam
/// or AdamW. Thread rule: one thread at a time for an optimizer.
std::optional<ParameterUpdate> begin_update(torch::optim::Optimizer& optimizer,
                                            const torch::optim::OptimizerOptions& options,
                                            const at::Tensor& parameter);
/// After run(): tells autograd where LibTorch's optimizer would.
void end_update(const ParameterUpdate& update, const at::Tensor& parameter);

/// Collects a step's updates. Thread rule: one thread at a time.
class DeviceUpdates {
 public:
  virtual ~DeviceUpdates() = default;
  /// `update` of `parameter`, whose gradient lies like it and is kept until run().
  virtual void add(const ParameterUpdate& update, const at::Tensor& parameter) = 0;
  /// Enqueues them all on the current streams of their devices. Throws Error(transport).
  virtual void run() = 0;
};

/// None where this build has no kernels for the device.
std::unique_ptr<DeviceUpdates> make_device_updates(const at::Device& device);

}  // namespace hora::internal
