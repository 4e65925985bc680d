/// Clipping of gradients on a GPU, or on several devices: as gradient_norm.h, but the host waits
/// for the device once, after everything is on its way.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Whether all ranks hold the same gradients, of which each reads a part, or each its own.
enum class GradientOwners { all, each };

/// Multiplies the gradients by max_norm / (norm + 1e-6), rounded to their type, where that is below
/// 1 or not a number; gives the norm. Squares are added up in float32 (float64 for float64) within
/// a tensor, in float64 over tensors and ranks. The gradients of each rank are averaged on its
/// `device`, of any kind. Collective, and the same bits everywhere. Where a rank has joined, all
/// others read its part, for which they wait again.
double clip_on_device(const Peers& peers, const std::string& name,
                      const std::vector<at::Tensor>& gradients, GradientOwners owners,
                      const at::Device& device, double max_norm);

}  // namespace hora::internal
