/// One process with many GPUs, by torch::nn::parallel::data_parallel.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "examples/vision/models/model.h"
#include "examples/vision/train/precision.h"

namespace vision {

/// All GPUs that this process sees. Throws std::runtime_error, which says what to do, where there
/// is none.
std::vector<torch::Device> all_gpus();

/// What torch::nn::parallel::replicate copies: a model that computes in a precision, on whatever
/// thread. Replicas have gradient edges to the parameters of the one they were made from, and
/// leave it their BatchNorm statistics.
class ReplicatedModel : public torch::nn::Module {
 public:
  ReplicatedModel(std::shared_ptr<Classifier> model, const Precision& precision);

  /// As Precision::logits().
  torch::Tensor forward(const torch::Tensor& images);

  /// Copied with the model. The first since begin_step() is the one whose statistics count.
  std::shared_ptr<torch::nn::Module> clone(
      const torch::optional<torch::Device>& device = torch::nullopt) const override;

  /// Before replicas are made: forgets earlier ones; their threads record for autograd where the
  /// caller's does.
  void begin_step();
  /// In training, the model's buffers become the first replica's, which saw its part of the batch,
  /// as Python's DataParallel keeps those of the first GPU; without replicas nothing is done.
  void end_step();

 private:
  std::shared_ptr<Classifier> model_;
  Precision precision_;
  bool records_ = true;
  mutable std::shared_ptr<Classifier> first_replica_;  // clone() is const
};

/// Thread rule: one thread at a time.
class DataParallel {
 public:
  /// The model lies on the first of the devices, GPUs of this process.
  DataParallel(std::shared_ptr<Classifier> model, const Precision& precision,
               std::vector<torch::Device> devices);

  /// Images [N, 3, H, W] on the first device, in equal parts to all, to logits [N, classes] in
  /// float32 on the first. Each call copies the weights to the other devices.
  torch::Tensor logits(const torch::Tensor& images);

 private:
  std::shared_ptr<ReplicatedModel> model_;
  std::vector<torch::Device> devices_;
};

}  // namespace vision
