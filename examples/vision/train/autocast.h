/// Automatic mixed precision in C++.
#pragma once

#include <torch/torch.h>

namespace vision {

/// While it lives, this thread's operations on `device` run in `half` where that is safe, as within
/// Python's torch.autocast. May be nested, with the same type or another: afterwards all is as
/// before. Thread rule: destroyed by the thread that made it.
class Autocast {
 public:
  /// `half`: torch::kHalf or torch::kBFloat16.
  Autocast(const torch::Device& device, torch::ScalarType half);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  torch::DeviceType device_;
  bool was_on_;
  torch::ScalarType type_before_;
};

}  // namespace vision
