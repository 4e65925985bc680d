/// Batch normalisation over the batches of all ranks.
///
///     torch::nn::Sequential model(torch::nn::Conv2d(3, 64, 3), torch::nn::BatchNorm2d(64));
///     hora::convert_batch_norm(world, *model);
///     hora::SyncBatchNorm layer(world, torch::nn::BatchNormOptions(64));     // or one by one
#pragma once

#include <hora/export.h>
#include <hora/hora.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <string>

namespace HORA_EXPORT hora {

/// As torch::nn::BatchNorm1d, 2d and 3d in one, [N, C] or [N, C, ...]: the same options, parameters
/// and buffers under the same names, so each reads what the other saved. In training it normalises
/// by the mean and variance over all ranks of the set; batches may differ in size, and be empty on
/// some ranks. Running statistics are the same bits on every rank. In evaluation nothing is sent.
///
/// The gradient is the one of all ranks' losses added up; those of weight and bias are this rank's
/// share, which DistributedOptimizer reduces like any other.
///
/// Statistics are computed in float32 (float64 for float64), and put together in float64 after
/// Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
/// Variances" (1979), from each rank's count, mean and sum of squares. On a GPU the host does not
/// wait for it, but where this rank has less than two values a channel.
///
/// Collective in training: every rank of the set calls forward, and all or none call backward.
/// Ranks construct their modules in the same order. The context must outlive the module and the
/// graphs it is in, and stay where it is.
///
/// Errors: Error(invalid_argument) for an input of integers, without two dimensions or with another
/// number of channels, on every rank where all together have a single value a channel, and for
/// second derivatives. Thread rule: as any module.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const Context& context, const torch::nn::BatchNormOptions& options,
                    ProcessSet process_set = kWorld);

  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  /// Goes on with these parameters themselves, so that an optimizer that has them keeps them, and
  /// with the buffers' memory. `batch_norm` is a torch::nn::BatchNorm's implementation.
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

/// Puts a SyncBatchNorm in place of every BatchNorm1d, 2d and 3d that a torch::nn::Sequential holds
/// anywhere in `module`, with its parameters themselves, buffers and options; returns how many.
///
/// A BatchNorm that is not in a Sequential is called through a member of its owner's type, and
/// cannot be replaced: where there is one, nothing is changed and Error(invalid_argument) names it;
/// declare it as a hora::SyncBatchNorm instead.
std::size_t convert_batch_norm(const Context& context, torch::nn::Module& module,
                               ProcessSet process_set = kWorld);

}  // namespace hora
