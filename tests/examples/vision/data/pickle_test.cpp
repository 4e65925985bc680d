#include "examples/vision/data/pickle.h"

#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "examples/vision/data/pickle_opcodes.h"
#include "examples/vision/data/random.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using test::Bytes;
using test::fixture;
using test::message_of;
using test::read_bytes;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// All that Python wrote and is taken.
constexpr std::array taken{"python_2", "protocol_3", "protocol_4", "protocol_5"};

Bytes pickle_bytes(const std::string& name) {
  return read_bytes(fixture("pickles/" + name + ".pickle"));
}

// Reads the pickle and all that it may hold.
void read_all(const Bytes& bytes) {
  const Pickle pickle(bytes, "the file");
  pickle.matrix("data");
  pickle.integers("labels");
  pickle.strings("label_names");
}

std::string error_of(const Bytes& bytes) {
  return message_of([&] { read_all(bytes); });
}
std::string error_of(const std::string& name) {
  return error_of(pickle_bytes(name));
}

TEST(Pickle, ReadsWhatPythonWrote) {
  for (const char* name : taken) {
    SCOPED_TRACE(name);
    const Bytes bytes = pickle_bytes(name);
    const Pickle pickle(bytes, "the file");
    const ByteMatrix matrix = pickle.matrix("data");
    EXPECT_EQ(matrix.rows, 2U);
    EXPECT_EQ(matrix.columns, 3U);
    EXPECT_FALSE(matrix.by_columns);
    EXPECT_THAT(matrix.bytes, ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(pickle.integers("labels"), ElementsAre(0, 255, 256, 65536, -1));
    EXPECT_THAT(pickle.strings("label_names"), ElementsAre("a", "bc"));
    EXPECT_THAT(pickle.strings("twice"), ElementsAre("bc", "bc")) << "from the memo";
  }
}

TEST(Pickle, KnowsFortransOrderAndKeysOfBytes) {
  for (const char* protocol : {"3", "4", "5"}) {
    const Bytes by_columns = pickle_bytes(std::string("by_columns_") + protocol);
    const ByteMatrix matrix = Pickle(by_columns, "x").matrix("data");
    EXPECT_TRUE(matrix.by_columns);
    EXPECT_EQ(matrix.rows, 2U);
    EXPECT_THAT(matrix.bytes, ElementsAre(1, 4, 2, 5, 3, 6));
    const Bytes bytes_keys = pickle_bytes(std::string("bytes_keys_") + protocol);
    EXPECT_THAT(Pickle(bytes_keys, "x").integers("labels"), ElementsAre(7));
  }
}

TEST(Pickle, NamesWhatIsMissingOrOfAnotherType) {
  const Bytes bytes = pickle_bytes("python_2");
  const Pickle pickle(bytes, "the file");
  EXPECT_THAT(message_of([&] { pickle.integers("absent"); }),
              AllOf(StartsWith("the file: "), HasSubstr("no key 'absent'")));
  EXPECT_THAT(message_of([&] { pickle.integers("data"); }), HasSubstr("under 'data' no list"));
  EXPECT_THAT(message_of([&] { pickle.matrix("labels"); }), HasSubstr("'labels' no numpy array"));
  EXPECT_THAT(message_of([&] { pickle.strings("labels"); }), HasSubstr("other than strings"));
  EXPECT_THAT(message_of([&] { pickle.integers("label_names"); }), HasSubstr("whole numbers"));
  EXPECT_THAT(error_of("list"), HasSubstr("is no dictionary"));
  EXPECT_THAT(error_of("vector"), HasSubstr("1 dimensions"));
}

TEST(Pickle, RefusesNamesOfCode) {
  for (const char* protocol : {"2", "3"}) {
    EXPECT_THAT(
        error_of(std::string("harmful_") + protocol),
        AllOf(StartsWith("the file: pickle opcode GLOBAL (63) at byte"),
              HasSubstr("posix.system, which is refused"), HasSubstr("no code is ever run")));
  }
  for (const char* protocol : {"4", "5"}) {
    EXPECT_THAT(
        error_of(std::string("harmful_") + protocol),
        AllOf(HasSubstr("opcode STACK_GLOBAL (93) at byte"), HasSubstr("posix.system, which is")));
  }
  EXPECT_THAT(error_of("ordered"), HasSubstr("collections.OrderedDict, which is refused"));
  EXPECT_THAT(error_of("protocol_2"), HasSubstr("_codecs.encode, which is refused"));
  EXPECT_FALSE(std::filesystem::exists("harmed"));
}

TEST(Pickle, RefusesOtherArraysAndProtocols) {
  EXPECT_THAT(error_of("other_dtype"), AllOf(HasSubstr("REDUCE"), HasSubstr("array of uint8")));
  EXPECT_THAT(error_of("other_order"), AllOf(HasSubstr("REDUCE"), HasSubstr("array of uint8")));
  for (const char* name : {"protocol_0", "protocol_1"}) {
    EXPECT_THAT(error_of(name), HasSubstr("protocols 2 to 5"));
  }
  Bytes newer = pickle_bytes("protocol_5");
  newer[1] = 6;
  EXPECT_THAT(error_of(newer), HasSubstr("protocols 2 to 5"));
}

// Those that read_all() may meet; all others are refused by name.
const std::set<std::uint8_t> known{'(',  ')',  '.',  'B',  'C',  'J',  'K',  'M',  'N',  'R',
                                   'T',  'U',  'X',  ']',  'a',  'b',  'c',  'e',  'h',  'j',
                                   'q',  'r',  's',  't',  'u',  '}',  0x85, 0x86, 0x87, 0x88,
                                   0x89, 0x8c, 0x8d, 0x8e, 0x93, 0x94, 0x95, 0x96};

TEST(Pickle, RefusesEveryOtherOpcode) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    // Operands for any opcode: counts of one, and a line.
    const Bytes bytes{0x80, 2, '}', byte, 1, 0, 0, 0, 0, 0, 0, 0, '\n', '\n', '.'};
    const std::string error = error_of(bytes);
    EXPECT_THAT(error, StartsWith("the file: ")) << code;
    if (!known.contains(byte)) {
      EXPECT_THAT(error,
                  AllOf(HasSubstr("pickle opcode " + std::string(opcode_name(byte)) + " ("),
                        HasSubstr(") at byte 3 is refused: files of CIFAR-10 do not hold it")))
          << code;
    }
  }
  EXPECT_EQ(opcode_name('i'), "INST");
  EXPECT_EQ(opcode_name(0x81), "NEWOBJ");
  EXPECT_EQ(opcode_name('?'), "unknown");
}

TEST(Pickle, EveryTruncationIsAnError) {
  for (const char* name : taken) {
    const Bytes whole = pickle_bytes(name);
    for (std::size_t left = 0; left < whole.size(); ++left) {
      const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(left));
      ASSERT_THAT(error_of(part), StartsWith("the file: pickle opcode "))
          << name << ", " << left << " bytes";
    }
    Bytes longer = whole;
    longer.push_back('.');
    EXPECT_THAT(error_of(longer), HasSubstr("1 bytes behind it"));
  }
}

TEST(Pickle, NoDamageDoesMoreThanRefuse) {
  const std::uint64_t seed = hora::internal::test::seed();
  const std::vector<std::uint8_t> codes(known.begin(), known.end());
  for (const char* name : taken) {
    const Bytes whole = pickle_bytes(name);
    for (std::uint64_t round = 0; round < 4000; ++round) {
      Random random{seed, round};
      Bytes damaged = whole;
      for (std::uint64_t change = random.below(3) + 1; change > 0; --change) {
        // Half of the changes put an opcode that goes on.
        damaged[random.below(damaged.size())] = random.below(2) == 0
                                                    ? static_cast<std::uint8_t>(random.below(256))
                                                    : codes[random.below(codes.size())];
      }
      const std::string error = error_of(damaged);
      if (!error.empty()) {
        ASSERT_THAT(error, StartsWith("the file: ")) << name << ", round " << round;
      }
    }
  }
}

TEST(Pickle, LimitsWhatItMakes) {
  Bytes objects{0x80, 2};
  objects.insert(objects.end(), 1'000'001, 'N');
  EXPECT_THAT(error_of(objects), HasSubstr("more than a million objects"));
  // One object, again and again.
  Bytes copies{0x80, 2, 'N', 'q', 0};
  for (int i = 0; i < 1'000'001; ++i) {
    copies.insert(copies.end(), {'h', 0});
  }
  EXPECT_THAT(error_of(copies), HasSubstr("more than a million objects on the stack"));
  // A length that no file has.
  EXPECT_THAT(error_of(Bytes{0x80, 4, 0x8e, 255, 255, 255, 255, 255, 255, 255, 255, '.'}),
              HasSubstr("needs 18446744073709551615 bytes"));
}

}  // namespace
}  // namespace vision
