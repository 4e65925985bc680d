/// Automatic mixed precision in C++.
#pragma once

#include <torch/torch.h>

#include "examples/cifar10/precision.h"

namespace cifar10 {

/// While it lives, this thread's operations on `device` run in the lower precision where that is
/// safe, as within Python's torch.autocast; nothing happens for float32. float16 needs CUDA.
class Autocast {
 public:
  Autocast(const torch::Device& device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool on_;
};

}  // namespace cifar10
