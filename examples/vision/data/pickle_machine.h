/// The stack machine that a pickle is a program for, and the objects that it makes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vision {

enum class PickleKind {
  mark,
  none,
  boolean,
  integer,
  string,  ///< text or bytes: Python 2, which wrote CIFAR-10, knows no difference
  tuple,
  list,
  dictionary,
  reconstruct,          ///< numpy.core.multiarray._reconstruct
  from_buffer,          ///< numpy.core.numeric._frombuffer
  ndarray_class,        ///< numpy.ndarray
  dtype_class,          ///< numpy.dtype
  dtype,                ///< an object of it: uint8
  array_without_state,  ///< an object of ndarray, as _reconstruct makes it
  array,                ///< one with shape and bytes
};

using PickleIndex = std::uint32_t;  ///< of an object among all

struct PickleObject {
  PickleKind kind = PickleKind::none;
  std::int64_t number = 0;  ///< integer; boolean: 0 or 1; array: 1 where it is by columns
  std::span<const std::uint8_t> text;  ///< of string and array, in the pickle's bytes
  std::vector<PickleIndex> items;  ///< tuple, list; dictionary: key, value, key, ...; array: shape

  /// Whether it is this string.
  bool is(std::string_view other) const {
    return kind == PickleKind::string &&
           std::equal(text.begin(), text.end(), other.begin(), other.end());
  }
};

struct PickleObjects {
  std::vector<PickleObject> objects;
  PickleIndex root = 0;  ///< what the pickle is
};

/// Runs the pickle, as far as class Pickle allows. Throws std::runtime_error that begins with
/// `where`, with opcode and byte.
PickleObjects run_pickle(std::span<const std::uint8_t> bytes, const std::string& where);

}  // namespace vision
