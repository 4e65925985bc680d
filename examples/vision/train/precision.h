/// How images become logits: in which precision, and on how many GPUs.
#pragma once

#include <hora/torch/grad_scaler.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/vision/models/model.h"
#include "examples/vision/train/options.h"

namespace vision {

/// The options' choice for a device. A value: threads may share it, each with its own model.
class Precision {
 public:
  /// `--amp` names the 16-bit type, and means O1 where no level is given. Without it O1 and O2 take
  /// float16 on a GPU, else bfloat16. Throws std::runtime_error for float16 on the CPU.
  Precision(const torch::Device& device, const PrecisionOptions& options);

  /// Images [N, 3, H, W] on the device to logits [N, classes] in float32. The model's parameters
  /// are float32, and stay so; under O2 gradients arrive at them one by one, in float32.
  torch::Tensor logits(Classifier& model, const torch::Tensor& images) const;

  /// Enabled for float16, and for a level without a type.
  hora::GradScalerOptions scaler() const;

  /// "float32", "bfloat16 (autocast)", or "O2: float16 model, BatchNorm and master weights float32,
  /// dynamic loss scale".
  std::string describe() const;

 private:
  torch::Device device_;
  PrecisionOptions options_;
  OptLevel level_;
  torch::ScalarType half_;  ///< of O1 and O2
};

/// All GPUs that this process sees. Throws std::runtime_error, which says what to do, where there
/// is none.
std::vector<torch::Device> all_gpus();

/// The most bytes that tensors on the device have taken at one time since the process began;
/// nothing where it is no GPU. Any thread.
std::optional<double> gpu_peak_bytes(const torch::Device& device);

/// As Precision::logits(), in equal parts on all_gpus(), by torch::nn::parallel::data_parallel;
/// model, images and logits lie on the first. One thread at a time.
torch::Tensor data_parallel_logits(const std::shared_ptr<Classifier>& model,
                                   const Precision& precision, const torch::Tensor& images);

/// Copied by torch::nn::parallel::replicate for one step, with gradient edges to the model's
/// parameters. Replicas' threads record for autograd where the one does that has made this.
class ReplicatedModel : public torch::nn::Module {
 public:
  ReplicatedModel(std::shared_ptr<Classifier> model, const Precision& precision);

  torch::Tensor forward(const torch::Tensor& images);
  /// Copied with the model.
  std::shared_ptr<torch::nn::Module> clone(
      const torch::optional<torch::Device>& device = torch::nullopt) const override;
  /// In training, the model's buffers become the first replica's, which saw its part of the batch,
  /// as Python's DataParallel keeps those of the first GPU.
  void keep_statistics();

 private:
  std::shared_ptr<Classifier> model_;
  Precision precision_;
  bool records_ = torch::GradMode::is_enabled();
  mutable std::shared_ptr<Classifier> first_replica_;  // clone() is const
};

}  // namespace vision
