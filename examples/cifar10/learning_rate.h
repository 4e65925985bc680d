/// The learning rate of each step.
#pragma once

#include <cstddef>

namespace cifar10 {

/// Linear from `peak` / warm-up up to `peak` over the first sixth of all steps, then half a cosine
/// down to 0 (Goyal et al.: Accurate, large minibatch SGD, 2017, section 2.2; Loshchilov, Hutter:
/// SGDR, ICLR 2017, section 3). `step` counts from 0 over all epochs.
double learning_rate(double peak, std::size_t step, std::size_t total_steps);

}  // namespace cifar10
