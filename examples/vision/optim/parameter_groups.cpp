#include "examples/vision/optim/parameter_groups.h"

namespace vision {

ParametersByDecay split_by_decay(
    const torch::OrderedDict<std::string, torch::Tensor>& named_parameters) {
  ParametersByDecay split;
  for (const auto& parameter : named_parameters) {
    (parameter.value().dim() > 1 ? split.decayed : split.not_decayed).push_back(parameter.value());
  }
  return split;
}

}  // namespace vision
