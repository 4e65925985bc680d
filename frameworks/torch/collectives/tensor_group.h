/// What the collectives of a group have in common.
#pragma once

#include <hora/torch_groups.h>

#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace hora {

/// Throws Error(invalid_argument) where the tensors are not on one device, naming both.
void check_group(const std::string& name, const std::vector<torch::Tensor>& tensors);

/// "<name>.<index>"; unnamed stays unnamed.
std::string member_name(const std::string& name, std::size_t index);

/// The handles of `start(tensor, options)` for each tensor, under the members' names. Where one
/// throws, those before it have been waited for: every rank throws at the same member.
template <class Options, class Start>
auto start_group(const std::vector<torch::Tensor>& tensors, const Options& options, Start start) {
  check_group(options.name, tensors);
  std::vector<decltype(start(tensors[0], options))> handles;
  handles.reserve(tensors.size());
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Options mine = options;
      mine.name = member_name(options.name, i);
      handles.push_back(start(tensors[i], mine));
    }
  } catch (...) {
    handles.clear();
    throw;
  }
  return handles;
}

/// Waits for all of them, then throws the first one's error.
template <class Handle>
auto wait_for_all(std::vector<Handle>& handles) {
  std::vector<decltype(handles[0].wait())> results;
  results.reserve(handles.size());
  std::exception_ptr first_error;
  for (Handle& handle : handles) {
    try {
      results.push_back(handle.wait());
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  return results;
}

}  // namespace hora
