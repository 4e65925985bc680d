/// LibTorch's SGD, Adam and AdamW with a step that reads and writes each element once.
///
///     hora::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
///
/// Options, state, archives, groups and schedulers are LibTorch's, and so are the bits on a CPU,
/// but a NaN's payload, and Adam's and AdamW's parameters where LibTorch takes square roots by MKL:
/// its last bit may be wrong, updates differ by 2 units in the last place. On GPUs one kernel steps
/// all tensors of the same options, with the CPU's formulas: some units from LibTorch's.
///
/// For float32 and float64, dense (channels-last, too), with gradient and state in the same memory
/// order; LibTorch's step() does others. Thread rule and errors: as LibTorch's classes.
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
