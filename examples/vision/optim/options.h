/// The options of this folder's optimizers: checked, and in LibTorch's archives.
#pragma once

#include <torch/serialize/archive.h>

#include <stdexcept>
#include <string>

namespace vision {

/// Throws std::invalid_argument "<what>: <name> is <value>; expected <expected>" unless `good`.
inline void check_option(const char* what, const char* name, bool good, double value,
                         const char* expected) {
  if (good) return;
  throw std::invalid_argument(std::string(what) + ": " + name + " is " + std::to_string(value) +
                              "; expected " + expected);
}

template <class T>
void write_option(torch::serialize::OutputArchive& archive, const std::string& name, T value) {
  archive.write(name, c10::IValue(value));
}

inline c10::IValue read_option(torch::serialize::InputArchive& archive, const std::string& name) {
  c10::IValue value;
  archive.read(name, value);
  return value;
}

}  // namespace vision
