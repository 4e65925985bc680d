/// In which precision a model computes, and by what its loss is scaled for that.
#pragma once

#include <hora/grad_scaler_options.h>
#include <torch/types.h>

#include <cstddef>
#include <string>

#include "examples/vision/models/model.h"
#include "examples/vision/train/precision_options.h"

namespace vision {

/// What the options come to on a device.
///
///     const vision::Precision precision(device, options.precision);
///     hora::GradScaler scaler(optimizer, precision.scaler());
///     ...
///     scaler.scale(cross_entropy(precision.logits(*model, images), labels)).backward();
///
/// A value: threads may share it, each with a model of its own.
class Precision {
 public:
  /// Throws std::runtime_error where options contradict each other, or where LibTorch does not
  /// compute in float16 on this device and amp asks for it.
  Precision(const torch::Device& device, const PrecisionOptions& options);

  /// Images [N, 3, H, W] on the device to logits [N, classes] in float32. The model's parameters
  /// are float32, and stay so.
  torch::Tensor logits(Classifier& model, const torch::Tensor& images) const;

  hora::GradScalerOptions scaler() const;

  /// "float32", or "O2: bfloat16 model, BatchNorm and master weights float32, dynamic loss scale".
  std::string describe() const;

  /// What is printed for a step that was skipped, counted from 1, after the scaler's update().
  std::string describe_skipped(std::size_t step, double new_scale) const;

 private:
  torch::Device device_;
  OptLevel level_;
  torch::ScalarType half_;  ///< of levels O1 and O2
  bool replaces_float16_;   ///< half_ is bfloat16, because the device has no float16
  std::optional<LossScale> loss_scale_;
};

}  // namespace vision
