#include "frameworks/torch/optimizer/parameter_list.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

namespace hora {
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
  require(parameter, same_order(shape_, strides_, now), "strides", at::IntArrayRef(strides_),
          at::IntArrayRef(now));
}

std::vector<ParameterForm> forms_of(const std::vector<Parameter>& parameters) {
  std::vector<ParameterForm> forms;
  for (const Parameter& parameter : parameters) forms.emplace_back(parameter.tensor);
  return forms;
}

namespace {

std::string bracketed(const std::vector<std::int64_t>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + "]";
}

bool is_row_major(const Shape& shape, const std::vector<std::int64_t>& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

tl::expected<std::vector<std::size_t>, std::string> match_parameters(
    std::span<const NamedIdentity> named, std::span<const std::vector<const void*>> groups) {
  std::unordered_map<std::string, const void*> identities;
  std::unordered_set<const void*> known;
  for (const NamedIdentity& entry : named) {
    const auto [place, inserted] = identities.try_emplace(entry.name, entry.identity);
    if (!inserted && place->second != entry.identity) {
      return tl::unexpected("two parameters are named '" + entry.name +
                            "'; expected a name of its own for each");
    }
    known.insert(entry.identity);
  }

  std::unordered_set<const void*> held;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t position = 0; position < groups[group].size(); ++position) {
      const void* identity = groups[group][position];
      if (!known.contains(identity)) {
        return tl::unexpected("parameter " + std::to_string(position) +
                              " of the optimizer's group " + std::to_string(group) +
                              " is not among named_parameters; pass all of the module's, such as "
                              "module->named_parameters()");
      }
      held.insert(identity);
    }
  }

  std::vector<std::size_t> selected;
  for (std::size_t index = 0; index < named.size(); ++index) {
    if (held.erase(named[index].identity) == 1) selected.push_back(index);
  }
  return selected;
}

std::string describe(const std::string& name, DataType type, const Shape& shape,
                     const std::vector<std::int64_t>& strides) {
  std::string text = "'" + printable(name, std::string::npos) + "' " + std::string(name_of(type)) +
                     " " + bracketed(shape);
  if (!is_row_major(shape, strides)) text += " with strides " + bracketed(strides);
  return text;
}

std::optional<std::size_t> first_difference(std::span<const std::string> a,
                                            std::span<const std::string> b) {
  const std::size_t common = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (a[i] != b[i]) return i;
  }
  if (a.size() == b.size()) return std::nullopt;
  return common;
}

std::string join_lines(std::span<const std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace hora
