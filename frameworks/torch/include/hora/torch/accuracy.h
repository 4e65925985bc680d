/// How many samples a classifier has right.
///
///     const torch::Tensor correct = hora::topk_correct(output, target, {1, 5}).cpu();
///     top1.update(100.0 * correct[0].item<double>() / count, count);
///     top5.update(100.0 * correct[1].item<double>() / count, count);
#pragma once

#include <hora/export.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace HORA_EXPORT hora {

/// Counts, for each k of `ks`, the samples whose class is among the k largest outputs: [ks.size()]
/// of int64 on the outputs' device, for which the host does not wait. `output`: [samples, classes],
/// floating-point; `target`: [samples], int64, on the same device. Among equal outputs LibTorch's
/// topk() chooses; a k above the number of classes counts as that. Throws Error(invalid_argument)
/// for other shapes or types, and a k below 1. Thread rule: any thread.
torch::Tensor topk_correct(const torch::Tensor& output, const torch::Tensor& target,
                           const std::vector<std::int64_t>& ks = {1, 5});

}  // namespace hora
