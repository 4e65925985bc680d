/// In which precision a model computes, and by what its loss is scaled for that.
#pragma once

#include <hora/torch/grad_scaler_options.h>
#include <torch/types.h>

#include <string>

#include "examples/vision/models/model.h"
#include "examples/vision/train/options.h"

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
  /// `--amp` names the 16-bit type, and means O1 where no level is given. Without it O1 and O2 take
  /// float16, and bfloat16 where LibTorch does not compute in float16 on this device. Throws
  /// std::runtime_error where amp asks for float16 and the device does not have it.
  Precision(const torch::Device& device, const PrecisionOptions& options);

  /// Images [N, 3, H, W] on the device to logits [N, classes] in float32. The model's parameters
  /// are float32, and stay so.
  torch::Tensor logits(Classifier& model, const torch::Tensor& images) const;

  /// Enabled for float16, and for a level without a type.
  hora::GradScalerOptions scaler() const;

  /// "float32", "bfloat16 (autocast)", or "O2: float16 model, BatchNorm and master weights float32,
  /// dynamic loss scale".
  std::string describe() const;

  /// Why the scaler has left a step out, after its update(): "gradient overflow; loss scale is now
  /// 32768".
  std::string describe_overflow(double new_scale) const;

 private:
  torch::Device device_;
  PrecisionOptions options_;
  OptLevel level_;
  torch::ScalarType half_;  ///< of O1 and O2
};

}  // namespace vision
