/// LibTorch's SGD, Adam and AdamW with a step that passes over memory once.
///
///     hora::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
///
/// They are LibTorch's own classes with another step(): options, state, saved archives, parameter
/// groups and schedulers are LibTorch's. LibTorch's step() goes over the memory of a parameter once
/// for each operation, up to five times; here each of parameter, gradient and state is read once
/// and written once, by instructions that are chosen for the CPU, on LibTorch's intra-op threads.
///
/// The bits are LibTorch's: the same operations in the same order, with products and sums rounded
/// together where LibTorch's own kernels do that on this CPU (found out by four operations at the
/// first step). Only a NaN's payload may differ, and Adam's and AdamW's parameters where LibTorch
/// takes square roots by MKL, whose last bit may be wrong (2.11's wheels do): there an update,
/// which is rounded rightly here, differs by some 2 units in its last place; the moments do not.
///
/// That is for parameters of float32 and float64 that are dense in memory, channels-last among
/// them, with a gradient and state in the same memory order, on the CPU and, in builds with CUDA,
/// on GPUs. There all tensors with the same options are stepped by one kernel in place of several a
/// tensor; the bits are those of the CPU's formulas with products and sums rounded together, from
/// which LibTorch's kernels for GPUs differ by some units in the last place (they multiply by a
/// rounded inverse where Adam divides). All others, such as bfloat16's and those with a sparse
/// gradient, are stepped by LibTorch's step().
///
/// Thread rule and errors: as LibTorch's classes.
#pragma once

#include <hora/export.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace HORA_EXPORT hora {
namespace optim {

class SGD final : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class Adam final : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class AdamW final : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace optim
}  // namespace hora
