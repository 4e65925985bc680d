/// The form of a parameter, compared with its form at construction: its memory may change, its form
/// may not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hora::internal {

/// A parameter whose gradient is averaged. `tensor` shares the user's parameter.
struct Parameter {
  std::string name;
  at::Tensor tensor;
};

inline std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

/// Dense memory in the same order of elements.
bool same_memory_order(const at::Tensor& a, const at::Tensor& b);

/// Type, device, shape and memory order that a parameter had. Errors name it "<kind> '<name>'".
class ParameterForm {
 public:
  explicit ParameterForm(const at::Tensor& parameter, const char* kind = "Parameter");

  /// Throws Error(invalid_argument) naming the parameter and both values where its type, device or
  /// shape is another.
  void check(const Parameter& parameter) const;
  /// Likewise, and where its elements lie in another order: that of a gradient's place in its
  /// bucket, row-major where the parameter is not dense.
  void check_with_order(const Parameter& parameter) const;
  /// Whether they lie in the same order.
  bool has_order(const Parameter& parameter) const;

 private:
  template <class T>
  void require(const Parameter& parameter, bool same, const char* what, const T& was,
               const T& is) const;

  const char* kind_;
  at::ScalarType type_;
  at::Device device_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
};

std::vector<ParameterForm> forms_of(const std::vector<Parameter>& parameters);

}  // namespace hora::internal
