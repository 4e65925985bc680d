/// The pickles of CIFAR-10's Python version, and nothing else of that format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "examples/vision/data/pickle_machine.h"

namespace vision {

/// A matrix of bytes as numpy stores it.
struct ByteMatrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  bool by_columns = false;  ///< Fortran's order
  std::span<const std::uint8_t> bytes;
};

/// A dictionary of strings, whole numbers, lists of these, and numpy arrays of uint8 with two
/// dimensions, as the published files hold it, which Python 2 wrote (protocol 2, PEP 307), and as
/// Python 3 writes a subset of them (protocols 3 to 5, PEP 3154 and 574; in its protocol 2 bytes
/// ask for _codecs.encode, which is refused). Opcodes are those of Python's Lib/pickletools.py.
///
/// Nothing is ever run: of the names that a pickle may ask for, four are known (numpy's
/// _reconstruct, _frombuffer, ndarray and dtype), and stand for an array of uint8. Every other name
/// and every opcode that such files do not use is an error, which names it and its byte. Objects,
/// memo and stack are limited to a million each.
///
/// Errors are std::runtime_error that begin with `where`. Thread rule: reading from any thread.
class Pickle {
 public:
  /// `bytes` outlive the object.
  Pickle(std::span<const std::uint8_t> bytes, std::string where);

  // What lies under a key of the dictionary. Throws where there is no such key or its value is of
  // another type.
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;
  ByteMatrix matrix(std::string_view key) const;

 private:
  const PickleObject& value(std::string_view key, PickleKind kind, const char* in_words) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string where_;
  PickleObjects pickle_;
};

}  // namespace vision
