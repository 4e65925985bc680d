/// Clipping by the global norm of averaged gradients: Pascanu, Mikolov, Bengio, "On the difficulty
/// of training recurrent neural networks", 2013, arXiv 1211.5063, section 3.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Consecutive elements of one tensor of a list.
struct ElementRange {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// Part `part` of `parts` about equal ones of all elements of a list of tensors. Pure.
std::vector<ElementRange> part_of_elements(std::span<const std::int64_t> counts, int part,
                                           int parts);

/// Whether all ranks hold the same gradients, of which each reads a part, or each its own.
enum class GradientOwners { all, each };

/// Multiplies the gradients by max_norm / (norm + 1e-6) where that is below 1 or not a number;
/// gives the norm, their 2-norm together. The parts of ranks that have joined are read by all
/// others. Collective, under `name`, and the same bits everywhere. Gradients on the CPU.
double clip_on_host(const Peers& peers, const std::string& name,
                    const std::vector<at::Tensor>& gradients, GradientOwners owners,
                    double max_norm);

/// Likewise of gradients on a GPU, or on several devices: the host waits for the device once, after
/// everything is on its way, and again only where a rank has joined. The factor is rounded to their
/// type. Squares are added up in float32 (float64 for float64) within a tensor, in float64 over
/// tensors and ranks. Each rank's are added up on its `device`, of any kind.
double clip_on_device(const Peers& peers, const std::string& name,
                      const std::vector<at::Tensor>& gradients, GradientOwners owners,
                      const at::Device& device, double max_norm);

}  // namespace hora::internal
