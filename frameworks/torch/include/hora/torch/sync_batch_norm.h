/// Batch normalisation over the batches of all ranks.
///
///     torch::nn::Sequential model(torch::nn::Conv2d(3, 64, 3), torch::nn::BatchNorm2d(64));
///     hora::convert_batch_norm(world, *model);
///     hora::SyncBatchNorm layer(world, torch::nn::BatchNormOptions(64));     // or one by one
#pragma once

#include <hora/torch/collectives.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>

namespace HORA_EXPORT hora {

/// As torch::nn::BatchNorm1d, 2d and 3d, with their options, parameters, buffers and names. In
/// training it normalises over all ranks of the set, whose batches may differ in size or be empty;
/// running statistics are the same bits everywhere (float64; Chan, Golub and LeVeque, 1979). The
/// input's gradient is that of all ranks' losses added up; weight and bias get this rank's share.
///
/// Collective in training: forward on every rank, backward on all or none, modules constructed in
/// the same order. The context must outlive module and graphs. Errors: Error(invalid_argument) for
/// other inputs, a single value a channel over all ranks, and second derivatives.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const Context& context, const torch::nn::BatchNormOptions& options,
                    ProcessSet process_set = kWorld);

  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  /// Continues with these parameters themselves and the buffers' memory. `batch_norm`: a
  /// torch::nn::BatchNorm's implementation.
  template <class BatchNormImpl>
  void take_over(const BatchNormImpl& batch_norm) {
    if (options.affine()) {
      parameters_["weight"] = weight = batch_norm.weight;
      parameters_["bias"] = bias = batch_norm.bias;
    }
    if (options.track_running_stats()) {
      running_mean.set_data(batch_norm.running_mean);
      running_var.set_data(batch_norm.running_var);
      num_batches_tracked.set_data(batch_norm.num_batches_tracked);
    }
    train(batch_norm.is_training());
  }

 protected:
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  const Context* context_;
  ProcessSet process_set_;
  std::string name_;
};
TORCH_MODULE(SyncBatchNorm);

/// Replaces every BatchNorm1d, 2d and 3d in a torch::nn::Sequential anywhere in `module`, keeping
/// its parameters, buffers and options; returns how many. For one that is elsewhere, as a member,
/// it changes nothing and throws Error(invalid_argument): declare that as hora::SyncBatchNorm.
std::size_t convert_batch_norm(const Context& context, torch::nn::Module& module,
                               ProcessSet process_set = kWorld);

}  // namespace hora
