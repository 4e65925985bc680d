#include "frameworks/torch/optimizer/parameter_list.h"

#include <hora/printable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace hora::internal {
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

}  // namespace hora::internal
