/// Automatic mixed precision in C++.
#pragma once

#include <torch/torch.h>

#include "examples/vision/train/choices.h"

namespace vision {

/// While it lives, this thread's operations on `device` run in the lower precision where that is
/// safe, as within Python's torch.autocast; nothing happens with Amp::off. float16 needs CUDA.
class Autocast {
 public:
  Autocast(const torch::Device& device, Amp amp);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool on_;
};

}  // namespace vision
