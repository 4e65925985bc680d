#include "frameworks/torch/optimizer/parameters.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "core/base/checked.h"
#include "frameworks/torch/tensor_view.h"

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

std::vector<std::int64_t> row_major(at::IntArrayRef shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::vector<std::int64_t> strides_of_place(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter.strides().vec()
                                                  : row_major(parameter.sizes());
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  return a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense() &&
         a.sizes() == b.sizes() && same_order(a.sizes(), a.strides(), b.strides());
}

ParameterForm::ParameterForm(const Parameter& parameter, const char* kind)
    : kind_(kind),
      type_(parameter.tensor.scalar_type()),
      device_(parameter.tensor.device()),
      shape_(parameter.tensor.sizes().vec()),
      strides_(strides_of_place(parameter.tensor)) {}

void ParameterForm::check(const Parameter& parameter, bool with_order) const {
  const auto compare = [&](const char* what, const auto& was, const auto& is) {
    if (was == is) return;
    throw Error(ErrorCode::invalid_argument,
                c10::str(kind_, " '", parameter.name, "' had ", what, " ", was,
                         " when DistributedOptimizer was constructed and has ", is,
                         " now; construct it after the last change, such as module->to(type)"),
                -1, parameter.name);
  };
  const at::Tensor& now = parameter.tensor;
  compare("type", type_, now.scalar_type());
  compare("device", device_, now.device());
  compare("shape", at::IntArrayRef(shape_), now.sizes());
  if (!with_order || has_order(parameter)) return;
  const std::vector<std::int64_t> strides = strides_of_place(now);
  compare("strides", at::IntArrayRef(strides_), at::IntArrayRef(strides));
}

bool ParameterForm::has_order(const Parameter& parameter) const {
  return parameter.tensor.sizes() == shape_ &&
         same_order(shape_, strides_, strides_of_place(parameter.tensor));
}

std::uint64_t fingerprint_of(const std::vector<Parameter>& parameters, std::int64_t samples) {
  std::uint64_t sum = 0;
  for (const Parameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const auto& version = tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) sum += version.current_version();
    if (!tensor.is_cpu() || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) continue;
    const auto* values = static_cast<const std::byte*>(tensor.data_ptr());
    const auto bytes = static_cast<std::size_t>(tensor.element_size());
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      const std::int64_t index =
          sample * (tensor.numel() - 1) / std::max<std::int64_t>(samples - 1, 1);
      std::uint64_t bits = 0;
      std::memcpy(&bits, values + static_cast<std::size_t>(index) * bytes, bytes);
      sum = sum * 31 + bits;
    }
  }
  return sum;
}

void put_placeholder(const at::Tensor& parameter) {
  parameter.mutable_grad() =
      at::empty(parameter.sizes(), parameter.options().device(at::kMeta).requires_grad(false));
}

void drop_placeholder(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && gradient.is_meta()) gradient.reset();
}

tl::expected<std::vector<Parameter>, std::string> match_parameters(
    const torch::OrderedDict<std::string, torch::Tensor>& named,
    const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const void*> known;
  for (const auto& item : named) known.insert(item.value().unsafeGetTensorImpl());
  std::unordered_set<const void*> held;
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& members = groups[group].params();
    for (std::size_t position = 0; position < members.size(); ++position) {
      held.insert(members[position].unsafeGetTensorImpl());
      if (known.contains(members[position].unsafeGetTensorImpl())) continue;
      return tl::unexpected(
          c10::str("parameter ", position, " of the optimizer's group ", group,
                   " is not among named_parameters; pass all of the module's, such "
                   "as module->named_parameters()"));
    }
  }
  std::vector<Parameter> parameters;
  for (const auto& item : named) {
    const bool selected = held.erase(item.value().unsafeGetTensorImpl()) == 1;
    if (selected) parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

std::string describe(const std::string& name, const at::Tensor& tensor) {
  const auto type = to_data_type(tensor.scalar_type());
  std::ostringstream text;
  text << "'" << printable(name, std::string::npos) << "' "
       << name_of(type.value_or(DataType::uint8)) << " " << tensor.sizes();
  if (!same_order(tensor.sizes(), tensor.strides(), row_major(tensor.sizes()))) {
    text << " with strides " << tensor.strides();
  }
  return text.str();
}

JointBroadcast::JointBroadcast(const Peers& peers, std::string name,
                               std::vector<at::Tensor> tensors)
    : peers_(peers), name_(std::move(name)), tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) forms_.emplace_back(Parameter{"", tensor}, "Buffer");
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors_) bytes += align_up(tensor.nbytes());
  if (peers_.size == 1 || bytes == 0) return;
  const at::Device device = working_device(peers_.context, tensors_);
  memory_ = Buffer(peers_.context, bytes, to_device(device));
  std::byte* place = memory_.data();
  for (const at::Tensor& tensor : tensors_) {
    copies_.push_back(tensor_on(nullptr, place, tensor.scalar_type(), device, tensor.sizes()));
    place += align_up(tensor.nbytes());
  }
}

void JointBroadcast::begin(int root) {
  for (std::size_t i = 0; i < forms_.size(); ++i) {
    forms_[i].check({std::to_string(i), tensors_[i]});
  }
  if (copies_.empty()) return;
  if (handle_.valid()) handle_.wait();
  is_root_ = peers_.context.rank() == root;
  const at::NoGradGuard no_grad;
  if (is_root_) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) copies_[i].copy_(tensors_[i]);
  }
  const TensorView bytes{memory_.data(),
                         DataType::uint8,
                         {static_cast<std::int64_t>(memory_.size())},
                         memory_.device(),
                         current_stream(copies_.front().device())};
  handle_ = broadcast_async(peers_.context, bytes,
                            {.name = name_, .root = root, .process_set = peers_.set});
}

void JointBroadcast::end() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  handle_.wait(current_stream(copies_.front().device()));
  if (is_root_) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(copies_[i]);
}

}  // namespace hora::internal
