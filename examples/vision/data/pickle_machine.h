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
  string,
  tuple,
  list,
  dictionary,
  reconstruct,    ///< numpy.core.multiarray._reconstruct
  ndarray_class,  ///< numpy.ndarray
  dtype_class,    ///< numpy.dtype
  dtype,          ///< an object of it: uint8
  array,          ///< an object of ndarray
};

using PickleIndex = std::uint32_t;  ///< of an object among all

struct PickleObject {
  PickleKind kind = PickleKind::none;
  std::int64_t number = 0;             ///< integer; boolean: 0 or 1
  std::span<const std::uint8_t> text;  ///< string, in the pickle's bytes
  /// Tuple, list; dictionary: key, value, key, ...; array: nothing yet, or its state: version,
  /// shape (a tuple), dtype, whether by columns (boolean), bytes (string).
  std::vector<PickleIndex> items;

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
