/// Mean and variance of each channel over all ranks. Pure, but for what sends them.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace hora {

/// All dimensions but the channels', which is the second.
torch::Tensor sum_over_batch(const torch::Tensor& input);

/// A tensor of one value a channel, shaped so that it goes with an input of `dimensions`.
torch::Tensor beside(const torch::Tensor& channels, std::int64_t dimensions);

/// One rank's: [1, 2 C + 1] in float64, its values a channel, then each channel's mean, then each
/// channel's sum of squared distances from that mean.
torch::Tensor statistics_row(const torch::Tensor& input);

struct BatchStatistics {
  double count = 0.0;  ///< values a channel
  torch::Tensor mean;  ///< [C], float64, as the other
  torch::Tensor squares;
  torch::Tensor variance() const { return squares / count; }
};
/// Of the rows of all ranks together.
BatchStatistics joined(const torch::Tensor& rows);

}  // namespace hora
