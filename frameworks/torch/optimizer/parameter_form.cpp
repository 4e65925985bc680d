#include "frameworks/torch/optimizer/parameter_form.h"

#include <hora/error.h>

#include <sstream>

namespace hora::internal {
namespace {

/// Strides of extents that are more than 1 decide where elements lie.
bool same_order(at::IntArrayRef shape, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && a[d] != b[d]) return false;
  }
  return true;
}

std::vector<std::int64_t> strides_of_place(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  std::vector<std::int64_t> strides(parameter.sizes().size());
  std::int64_t elements = 1;
  for (std::size_t d = strides.size(); d-- > 0;) {
    strides[d] = elements;
    elements *= parameter.sizes()[d];
  }
  return strides;
}

}  // namespace

bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense() &&
         a.sizes() == b.sizes() && same_order(a.sizes(), a.strides(), b.strides());
}

ParameterForm::ParameterForm(const at::Tensor& parameter, const char* kind)
    : kind_(kind),
      type_(parameter.scalar_type()),
      device_(parameter.device()),
      shape_(parameter.sizes().vec()),
      strides_(strides_of_place(parameter)) {}

template <class T>
void ParameterForm::require(const Parameter& parameter, bool same, const char* what, const T& was,
                            const T& is) const {
  if (same) return;
  std::ostringstream text;
  text << kind_ << " '" << parameter.name << "' had " << what << " " << was
       << " when DistributedOptimizer was constructed and has " << is
       << " now; construct it after the last change, such as module->to(type)";
  throw Error(ErrorCode::invalid_argument, text.str(), -1, parameter.name);
}

void ParameterForm::check(const Parameter& parameter) const {
  const at::Tensor& now = parameter.tensor;
  require(parameter, now.scalar_type() == type_, "type", type_, now.scalar_type());
  require(parameter, now.device() == device_, "device", device_, now.device());
  require(parameter, now.sizes() == shape_, "shape", at::IntArrayRef(shape_), now.sizes());
}

void ParameterForm::check_with_order(const Parameter& parameter) const {
  check(parameter);
  const auto now = strides_of_place(parameter.tensor);
  require(parameter, has_order(parameter), "strides", at::IntArrayRef(strides_),
          at::IntArrayRef(now));
}

bool ParameterForm::has_order(const Parameter& parameter) const {
  return parameter.tensor.sizes() == shape_ &&
         same_order(shape_, strides_, strides_of_place(parameter.tensor));
}

std::vector<ParameterForm> forms_of(const std::vector<Parameter>& parameters) {
  std::vector<ParameterForm> forms;
  for (const Parameter& parameter : parameters) forms.emplace_back(parameter.tensor);
  return forms;
}

}  // namespace hora::internal
