/// Top-k: only the largest elements of gradients travel.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///         {.hook = std::make_shared<hora::TopK>(hora::TopKOptions{.share = 0.01})});
#pragma once

#include <hora/export.h>
#include <hora/torch/gradient_hook.h>

#include <memory>

namespace HORA_EXPORT hora {

struct TopKOptions {
  double share = 0.01;         ///< of each bucket's elements, within (0, 1]; at least one travels
  bool error_feedback = true;  ///< what is not sent is added to the next step's gradient
};

/// Sparsification with memory: Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv 1809.07599, section
/// 2.2, a bucket being the vector. Each rank sends its elements of largest magnitude, with places,
/// 8 bytes each, to all; their average, added in rank order in float32, takes the gradients' place.
/// Worth it up to a share of 1 / (2 ranks). Memory: a bucket's length, float32. Constructor:
/// Error(invalid_argument) for options out of range. Thread rule: as GradientHook.
class TopK final : public GradientHook {
 public:
  explicit TopK(const TopKOptions& options = {});
  ~TopK() override;

  void begin(const GradientBucketView& bucket) override;
  bool proceed(const GradientBucketView& bucket) override;
  std::string describe() const override;
  torch::OrderedDict<std::string, torch::Tensor> state() const override;
  void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) override;

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
