/// Opcodes of Python's pickles and their names, as in Lib/pickletools.py.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace vision {

/// Those that CIFAR-10's Python version consists of, and those of Python 3 for the same objects.
enum class Opcode : std::uint8_t {
  mark = '(',
  empty_tuple = ')',
  stop = '.',
  binbytes = 'B',
  short_binbytes = 'C',
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  none = 'N',
  reduce = 'R',
  binstring = 'T',
  short_binstring = 'U',
  binunicode = 'X',
  empty_list = ']',
  append = 'a',
  build = 'b',
  global = 'c',
  appends = 'e',
  binget = 'h',
  long_binget = 'j',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  setitems = 'u',
  empty_dict = '}',
  proto = 0x80,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
};

/// Of all protocols up to 5, also those that are refused; "unknown" for a byte that is no opcode.
std::string_view opcode_name(std::uint8_t code);

}  // namespace vision
