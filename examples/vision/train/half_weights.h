/// A model that computes in 16 bits while its weights stay float32.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <deque>

namespace vision {

/// While it lives, every Conv2d and Linear within the module computes with copies of its weight and
/// bias in `half`; what else there is, such as BatchNorm, keeps its type (Micikevicius et al.,
/// arXiv 1710.03740, section 3.1: master weights). Destroyed right after forward():
///
///     torch::Tensor forward(vision::Classifier& model, const torch::Tensor& images) {
///       const vision::HalfWeights half(model, torch::kHalf);
///       return model.forward(images.to(torch::kHalf)).to(torch::kFloat32);
///     }
///
/// The registered parameters are the float32 masters all along: optimizers, hooks, checkpoints and
/// averages of weights see nothing else. Autograd records the copying, so that gradients arrive at
/// the masters, in float32, one by one as backward goes on. The graph keeps a copy until backward
/// has used it: at most half the weights' memory more than in float32.
///
/// Where the masters change between forward and backward, backward goes with the copies. Nested, or
/// with the same module twice, the outermost converts. Thread rule: one thread at a time uses the
/// module.
class HalfWeights {
 public:
  /// `half`: torch::kHalf or torch::kBFloat16. The module must outlive it.
  HalfWeights(torch::nn::Module& module, torch::ScalarType half);
  HalfWeights(const HalfWeights&) = delete;
  HalfWeights& operator=(const HalfWeights&) = delete;

 private:
  /// A layer's member beside its registered parameter.
  class Member {
   public:
    Member(torch::Tensor& member, torch::ScalarType half);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

   private:
    torch::Tensor& member_;
    torch::Tensor master_;
  };

  void replace(torch::Tensor& member, torch::ScalarType half);

  std::deque<Member> members_;
};

}  // namespace vision
