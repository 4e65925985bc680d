#include "examples/vision/data/pickle_opcodes.h"

#include <algorithm>

namespace vision {
namespace {

struct Name {
  std::uint8_t code;
  std::string_view name;
};

constexpr std::array names{
    Name{'(', "MARK"},          Name{')', "EMPTY_TUPLE"},
    Name{'.', "STOP"},          Name{'0', "POP"},
    Name{'1', "POP_MARK"},      Name{'2', "DUP"},
    Name{'B', "BINBYTES"},      Name{'C', "SHORT_BINBYTES"},
    Name{'F', "FLOAT"},         Name{'G', "BINFLOAT"},
    Name{'I', "INT"},           Name{'J', "BININT"},
    Name{'K', "BININT1"},       Name{'L', "LONG"},
    Name{'M', "BININT2"},       Name{'N', "NONE"},
    Name{'P', "PERSID"},        Name{'Q', "BINPERSID"},
    Name{'R', "REDUCE"},        Name{'S', "STRING"},
    Name{'T', "BINSTRING"},     Name{'U', "SHORT_BINSTRING"},
    Name{'V', "UNICODE"},       Name{'X', "BINUNICODE"},
    Name{']', "EMPTY_LIST"},    Name{'a', "APPEND"},
    Name{'b', "BUILD"},         Name{'c', "GLOBAL"},
    Name{'d', "DICT"},          Name{'e', "APPENDS"},
    Name{'g', "GET"},           Name{'h', "BINGET"},
    Name{'i', "INST"},          Name{'j', "LONG_BINGET"},
    Name{'l', "LIST"},          Name{'o', "OBJ"},
    Name{'p', "PUT"},           Name{'q', "BINPUT"},
    Name{'r', "LONG_BINPUT"},   Name{'s', "SETITEM"},
    Name{'t', "TUPLE"},         Name{'u', "SETITEMS"},
    Name{'}', "EMPTY_DICT"},    Name{0x80, "PROTO"},
    Name{0x81, "NEWOBJ"},       Name{0x82, "EXT1"},
    Name{0x83, "EXT2"},         Name{0x84, "EXT4"},
    Name{0x85, "TUPLE1"},       Name{0x86, "TUPLE2"},
    Name{0x87, "TUPLE3"},       Name{0x88, "NEWTRUE"},
    Name{0x89, "NEWFALSE"},     Name{0x8a, "LONG1"},
    Name{0x8b, "LONG4"},        Name{0x8c, "SHORT_BINUNICODE"},
    Name{0x8d, "BINUNICODE8"},  Name{0x8e, "BINBYTES8"},
    Name{0x8f, "EMPTY_SET"},    Name{0x90, "ADDITEMS"},
    Name{0x91, "FROZENSET"},    Name{0x92, "NEWOBJ_EX"},
    Name{0x93, "STACK_GLOBAL"}, Name{0x94, "MEMOIZE"},
    Name{0x95, "FRAME"},        Name{0x96, "BYTEARRAY8"},
    Name{0x97, "NEXT_BUFFER"},  Name{0x98, "READONLY_BUFFER"},
};

}  // namespace

std::string_view opcode_name(std::uint8_t code) {
  const auto* found =
      std::find_if(names.begin(), names.end(), [&](const Name& name) { return name.code == code; });
  return found == names.end() ? "unknown" : found->name;
}

}  // namespace vision
