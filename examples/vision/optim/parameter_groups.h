/// Which parameters are decayed.
#pragma once

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace vision {

struct ParametersByDecay {
  std::vector<torch::Tensor> decayed;  ///< weights of convolutions and linear layers
  std::vector<torch::Tensor>
      not_decayed;  ///< of one dimension or none: biases, and all of BatchNorm's
};

/// Goyal et al., arXiv 1706.02677, section 5.1, and He et al., "Bag of Tricks", arXiv 1812.01187,
/// section 3.1: neither BatchNorm's parameters nor biases are decayed. Both lists keep the order.
ParametersByDecay split_by_decay(
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters);

}  // namespace vision
