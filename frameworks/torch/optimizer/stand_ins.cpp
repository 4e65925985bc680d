#include "frameworks/torch/optimizer/stand_ins.h"

#include <ATen/Functions.h>

namespace hora::internal {
namespace {

at::Tensor stand_in(const at::Tensor& parameter, const at::Device& device) {
  const auto options = parameter.options().device(device).requires_grad(false);
  at::Tensor without_values = at::empty({0}, options);
  without_values.unsafeGetTensorImpl()->set_sizes_and_strides(parameter.sizes(),
                                                              parameter.strides());
  return without_values;
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided;
}

}  // namespace

StandIns::StandIns(const std::vector<Parameter>& parameters, const at::Device& device)
    : parameters_(parameters), averaged_(parameters) {
  for (Parameter& parameter : averaged_) {
    if (parameter.tensor.device() != device) parameter.tensor = stand_in(parameter.tensor, device);
  }
}

bool StandIns::stands_in(std::size_t index) const {
  return !averaged_[index].tensor.is_same(parameters_[index].tensor);
}

void StandIns::take(std::size_t index) const {
  if (!stands_in(index)) return;
  const at::Tensor& from = parameters_[index].tensor.mutable_grad();
  const at::Tensor& stand_in = averaged_[index].tensor;
  at::Tensor& to = stand_in.mutable_grad();
  if (!from.defined()) {
    to.reset();
  } else if (is_dense(from) && is_dense(to)) {  // hora's memory, kept from round to round
    to.copy_(from);
  } else {
    to = from.to(stand_in.device());
  }
}

void StandIns::give(std::size_t index) const {
  if (!stands_in(index)) return;
  const at::Tensor& from = averaged_[index].tensor.mutable_grad();
  const at::Tensor& parameter = parameters_[index].tensor;
  parameter.mutable_grad() = from.defined() ? from.to(parameter.device()) : at::Tensor();
}

}  // namespace hora::internal
