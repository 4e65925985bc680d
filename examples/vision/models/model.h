/// Image classifiers by name.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "examples/vision/models/architectures.h"

namespace vision {

struct ModelOptions {
  std::int64_t classes = 1000;
  std::optional<Stem> stem = std::nullopt;  ///< of a ResNet; unset: the architecture's own
  /// Channels of the first convolution, with which all others widen; 0: the architecture's own.
  std::int64_t base_width = 0;
  /// Residual blocks begin as the identity: the weight of each one's last BatchNorm is zero (Goyal
  /// et al., arXiv 1706.02677, section 5.1).
  bool zero_init_residual = false;
  /// In front of AlexNet's and VGG's hidden layers; unset: 0.5.
  std::optional<double> dropout = std::nullopt;
  /// Weights lie channels innermost, and images are brought into that order.
  bool channels_last = false;
  /// Makes each BatchNorm from its number of channels, such as a hora::SyncBatchNorm. Unset:
  /// torch::nn::BatchNorm2d. What it makes needs a parameter `weight`.
  std::function<torch::nn::AnyModule(std::int64_t)> batch_norm = nullptr;
};

/// Parameters and buffers have torchvision's names, and come in its order. One thread at a time.
class Classifier : public torch::nn::Module {
 public:
  /// Images [N, 3, H, W] to logits [N, classes]. Throws std::invalid_argument where the images have
  /// another shape or are smaller than the architecture needs.
  torch::Tensor forward(const torch::Tensor& images);

  /// A deep copy with gradients of its own, as torch::nn::parallel::replicate needs it. LibTorch's
  /// modules draw weights when they are made: LibTorch's generator goes on.
  std::shared_ptr<torch::nn::Module> clone(
      const torch::optional<torch::Device>& device = torch::nullopt) const override;

  const Architecture& architecture() const { return architecture_; }
  const ModelOptions& options() const { return options_; }

 protected:
  Classifier(const Architecture& architecture, const ModelOptions& options);

 private:
  friend std::shared_ptr<Classifier> make_model(std::string_view, const ModelOptions&);

  virtual torch::Tensor logits(const torch::Tensor& images) = 0;
  /// Where torchvision draws otherwise than LibTorch's modules do by themselves.
  virtual void draw_weights() = 0;

  const Architecture& architecture_;  // in the table, which stays
  ModelOptions options_;
};

/// On the CPU, with the weights that torchvision draws from the same seed. Throws
/// std::invalid_argument where there is no such architecture or it has not what an option sets.
std::shared_ptr<Classifier> make_model(std::string_view architecture, const ModelOptions& options);

}  // namespace vision
