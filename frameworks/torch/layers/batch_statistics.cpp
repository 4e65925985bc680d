#include "frameworks/torch/layers/batch_statistics.h"

#include <vector>

namespace hora {
namespace {

std::vector<std::int64_t> batch_dimensions(const torch::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

}  // namespace

torch::Tensor sum_over_batch(const torch::Tensor& input) {
  return input.sum(batch_dimensions(input));
}

torch::Tensor beside(const torch::Tensor& channels, std::int64_t dimensions) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dimensions), 1);
  shape[1] = channels.numel();
  return channels.view(shape);
}

torch::Tensor statistics_row(const torch::Tensor& input) {
  const std::int64_t channels = input.size(1);
  torch::Tensor row = torch::zeros({1, 2 * channels + 1}, input.options().dtype(torch::kDouble));
  if (input.numel() == 0) return row;
  const std::int64_t count = input.numel() / channels;
  const auto [variance, mean] =
      torch::var_mean(input, batch_dimensions(input), /*unbiased=*/false, /*keepdim=*/false);
  row.narrow(1, 0, 1).fill_(static_cast<double>(count));
  row.narrow(1, 1, channels).copy_(mean.unsqueeze(0));
  row.narrow(1, 1 + channels, channels).copy_(variance.unsqueeze(0)).mul_(count);
  return row;
}

BatchStatistics joined(const torch::Tensor& rows) {
  const std::int64_t channels = (rows.size(1) - 1) / 2;
  const auto counts = rows.narrow(1, 0, 1);
  const auto means = rows.narrow(1, 1, channels);
  BatchStatistics all;
  all.count = counts.sum().item<double>();
  all.mean = (counts * means).sum(0) / all.count;
  all.squares =
      (rows.narrow(1, 1 + channels, channels) + counts * (means - all.mean).square()).sum(0);
  return all;
}

}  // namespace hora
