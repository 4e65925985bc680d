#include "examples/cifar10/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cifar10 {

double learning_rate(double peak, std::size_t step, std::size_t total_steps) {
  const std::size_t warm_up = std::max<std::size_t>(1, total_steps / 6);
  if (step < warm_up) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warm_up);
  }
  const double done =
      static_cast<double>(step - warm_up) / static_cast<double>(total_steps - warm_up);
  return peak * 0.5 * (1.0 + std::cos(std::numbers::pi * done));
}

}  // namespace cifar10
