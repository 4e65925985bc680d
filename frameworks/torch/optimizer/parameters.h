/// Parameters that an optimizer averages: which they are, how ranks compare them, whether their
/// form or values have changed, and tensors that are broadcast together.
#pragma once

#include <hora/hora.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A parameter whose gradient is averaged. `tensor` shares the user's parameter.
struct Parameter {
  std::string name;
  at::Tensor tensor;
};

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters);

/// A tensor that an optimizer steps as one parameter.
struct OptimizerPiece {
  std::string name;        ///< of the parameter
  at::Tensor whole;        ///< the parameter
  at::Tensor stepped;      ///< in the optimizer's group: the parameter, or elements of it
  std::int64_t begin = 0;  ///< the first of them, in the parameter's memory order

  bool is_whole() const { return stepped.is_same(whole); }
};

using OptimizerStates =
    std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

/// Key of a parameter's state in LibTorch's optimizers: its address, in older versions as text.
template <class Key = OptimizerStates::key_type>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

/// Dense memory in the same order of elements.
bool same_memory_order(const at::Tensor& a, const at::Tensor& b);

/// Type, device, shape and memory order that a parameter had: its memory may change, its form may
/// not. Errors name it "<kind> '<name>'".
class ParameterForm {
 public:
  explicit ParameterForm(const Parameter& parameter, const char* kind = "Parameter");

  /// Throws Error(invalid_argument) naming the parameter and both values where its type, device or
  /// shape is another, or, `with_order`, its elements lie in another one.
  void check(const Parameter& parameter, bool with_order = false) const;
  /// Whether they lie in the order of a gradient's place: row-major where it was not dense.
  bool has_order(const Parameter& parameter) const;

 private:
  const char* kind_;
  at::ScalarType type_;
  at::Device device_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
};

/// Hashes versions, and `samples` values of each on the CPU: LibTorch's SGD writes through data(),
/// which no version shows.
std::uint64_t fingerprint_of(const std::vector<Parameter>& parameters, std::int64_t samples);

/// Makes `.grad` one that cannot be read, while the averages are elsewhere: LibTorch throws where a
/// value is wanted, as by its clip_grad_norm_(), which skips undefined gradients silently.
void put_placeholder(const at::Tensor& parameter);
/// Makes `.grad` undefined where it is one.
void drop_placeholder(const at::Tensor& parameter);

/// The named tensors that the optimizer's groups hold, in registration order, each once, tied ones
/// under their first name. The error says where a group has one without a name, which would be
/// stepped with its own rank's gradient.
tl::expected<std::vector<Parameter>, std::string> match_parameters(
    const torch::OrderedDict<std::string, torch::Tensor>& named,
    const torch::optim::Optimizer& optimizer);

/// "'conv1.weight' float32 [64, 3, 7, 7]", with the strides after it where the tensor is not
/// row-major: a gradient travels in its parameter's memory order, which ranks must share.
std::string describe(const std::string& name, const at::Tensor& tensor);

/// Several tensors, broadcast from one rank in one piece. Thread rule: one thread at a time.
class JointBroadcast {
 public:
  /// Dense tensors, the same on all ranks. They may get other memory later, of the same form.
  JointBroadcast(const Peers& peers, std::string name, std::vector<at::Tensor> tensors);

  /// Takes the values of `root`, a world rank, now; those of a begin() without end() are dropped.
  /// Throws as ParameterForm::check(), naming a tensor by its place.
  void begin(int root);
  /// end() would not block.
  bool ready() const { return handle_.ready(); }
  /// Waits; they are the root's values then.
  void end();

 private:
  const Peers peers_;
  const std::string name_;
  const std::vector<at::Tensor> tensors_;
  std::vector<ParameterForm> forms_;
  Buffer memory_;
  std::vector<at::Tensor> copies_;  ///< in memory_
  bool is_root_ = false;
  Handle handle_;  // after memory_: destroyed first
};

}  // namespace hora::internal
