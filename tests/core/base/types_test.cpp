// Types, checks, and texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <hora/types.h>

#include <climits>
#include <deque>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "core/base/sync.h"
#include "core/base/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;
using namespace std::string_literals;
using testing::EndsWith;
using testing::SizeIs;
using testing::StartsWith;

TensorView shaped(Shape shape, DataType type = DataType::float32) {
  return {nullptr, type, std::move(shape), {}};
}

/// The message of the Error(invalid_argument) that elements() throws, else a failure.
std::string refusal(const TensorView& tensor) {
  return test::expect_error(ErrorCode::invalid_argument, [&] { (void)tensor.elements(); }).what();
}

TEST(DataType, SizesAndNames) {
  const std::vector<std::size_t> sizes = {2, 2, 4, 8, 4, 8, 1, 1, 2, 1, 2, 4, 8};
  ASSERT_EQ(sizes.size(), static_cast<std::size_t>(last_of<DataType>) + 1);
  ASSERT_EQ(sizes.size(), std::size(test::kAllTypes));
  std::string names;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(size_of(type), sizes[i]) << name_of(type);
    EXPECT_EQ(is_floating_point(type), name_of(type).find("float") != std::string_view::npos);
    names.append(name_of(type)).append(" ");
  }
  EXPECT_EQ(names,
            "float16 bfloat16 float32 float64 int32 int64 uint8 int8 int16 bool uint16 uint32 "
            "uint64 ");
}

TEST(Names, OfOperationsDevicesAndErrors) {
  std::string names;
  for (int i = 0; i < 7; ++i) names.append(name_of(static_cast<ReduceOp>(i))).append("\n");
  for (int i = 0; i < 3; ++i) names.append(name_of(static_cast<DeviceKind>(i))).append("\n");
  for (int i = 0; i < 10; ++i) names.append(name_of(static_cast<ErrorCode>(i))).append("\n");
  test::expect_golden("core/base/texts.txt", "names", names);
}

TEST(TensorView, CountsElementsAndRefusesMoreBytesThanCanBeAddressed) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48, kHalf = std::int64_t{1} << 32;
  EXPECT_EQ(shaped({}).bytes(), 4u);
  EXPECT_EQ(shaped({2, 3, 5}, DataType::float64).bytes(), 240u);
  EXPECT_EQ(shaped({7, 0}).elements(), 0);
  EXPECT_EQ(shaped({kMost}, DataType::uint8).elements(), kMost);
  EXPECT_EQ(shaped({kMost / 4}).elements(), kMost / 4);
  EXPECT_THAT(refusal(shaped({kMost / 4 + 1})), HasSubstr("[70368744177665]"));
  // Products that wrap to 0, and to a small number, among them.
  for (const Shape& shape : {Shape{kMost / 2, 1}, {kHalf, kHalf}, {kMost << 14, 4, 3}, {INT64_MAX}})
    EXPECT_THAT(refusal(shaped(shape)), HasSubstr("2^48"));
}

template <class T>
concept ViewedAsTemporary = requires {
  view(T());
};
static_assert(!ViewedAsTemporary<float> && !ViewedAsTemporary<std::vector<float>>);
static_assert(ViewedAsTemporary<std::span<float>>, "its elements stay");

template <class T>
concept ViewedByEmptyBraces = requires(T* data) {
  view(data, {});
};
static_assert(!ViewedByEmptyBraces<float>, "a scalar, or no elements?");

TEST(Error, ItsTextCanBePrinted) {
  const std::string name = "x\n\0\x1b[2J"s;
  const Error error(ErrorCode::mismatch, "tensor \"" + name + "\" is odd", 0, name);
  EXPECT_STREQ(error.what(), "tensor \"x\\n\\x00\\x1b[2J\" is odd");
  EXPECT_EQ(error.tensor(), name);
}

/// Remembers what a destructor could know of the exception that runs it.
struct Witness {
  ~Witness() { text = error_in_flight(); }
  std::string& text;
};

TEST(Error, IsKnownToDestructorsWhileItUnwindsTheStackAndNotAfter) {
  std::string seen;
  const auto unwind = [&](const std::function<void()>& thrower) {
    try {
      const Witness witness{seen};
      thrower();
    } catch (const std::runtime_error&) {
    }
  };
  unwind([] { throw Error(ErrorCode::shut_down, "gone"); });
  EXPECT_EQ(seen, "gone");
  EXPECT_EQ(error_in_flight(), "");
  unwind([] { throw std::runtime_error("the program's own"); });
  EXPECT_EQ(seen, "");
}

constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, WhatDoesNotFitIsNoCountEverAfter) {
  for (const Checked& count :
       {Checked(kAll) + 1, Checked(kAll / 2 + 1) * 2, Checked(kAll) * 2 * 0,
        Checked(1) + (Checked(kAll) + 1), Checked(-1), Checked(std::int64_t{-1}) * 0 + 1}) {
    EXPECT_FALSE(count.at_most(kAll));
  }
}

TEST(Checked, AsWideArithmetic) {
  auto random = test::generator();
  for (int i = 0; i < 20000; ++i) {
    const auto any = [&] { return static_cast<std::uint64_t>(random()) >> (random() % 64); };
    const std::uint64_t a = any(), b = any(), c = any();
    const auto wide = static_cast<long double>(a) * static_cast<long double>(b) +
                      static_cast<long double>(c);  // 64 bits of mantissa
    if (wide >= 0x1p63L && wide <= 0x1p65L) continue;
    const Checked narrow = Checked(a) * b + c;
    ASSERT_EQ(narrow.at_most(kAll), wide < 0x1p63L) << a << " " << b << " " << c;
    if (wide < 0x1p63L) {
      ASSERT_EQ(narrow.value(), a * b + c);
    }
  }
}

std::vector<std::byte> bytes_of(std::initializer_list<std::uint64_t> words) {
  const auto bytes = std::as_bytes(std::span(words.begin(), words.size()));
  return {bytes.begin(), bytes.end()};
}

std::string refusal(const std::function<void()>& read) {
  const Error error = test::expect_error(ErrorCode::mismatch, read);
  EXPECT_EQ(error.rank(), 3);
  return error.what();
}

constexpr BytesOrigin kOrigin{"a letter", 3, ErrorCode::mismatch};

TEST(BoundedReader, NothingIsReadBeyondTheEnd) {
  const auto bytes = bytes_of({1});
  BoundedReader reader({bytes.data(), 7}, kOrigin);
  EXPECT_THAT(refusal([&] { reader.take<std::uint64_t>(); }),
              AllOf(HasSubstr("a letter of rank 3, 7 bytes long"), HasSubstr("8 bytes where 7")));
  EXPECT_THAT(refusal([&] { reader.take_bytes(std::numeric_limits<std::uint64_t>::max()); }),
              HasSubstr("18446744073709551615 bytes where 7 are left"));
  EXPECT_EQ(reader.remaining(), 7u) << "what is refused is not taken";
  EXPECT_THAT(refusal([&] { reader.expect_end(); }), HasSubstr("7 bytes follow"));
}

TEST(BoundedReader, CountsAreBoundedByWhatHasCome) {
  const auto bytes = bytes_of({2, 0, 0});
  EXPECT_EQ(BoundedReader(bytes, kOrigin).take_count(8), 2u);
  refusal([&] { BoundedReader(bytes, kOrigin).take_count(9); });
  for (const std::uint64_t count : {std::uint64_t{17}, std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
    const auto hostile = bytes_of({count, 0, 0});
    for (const std::size_t size : {1, 8}) {
      refusal([&] { BoundedReader(hostile, kOrigin).take_count(size); });
    }
    refusal([&] { BoundedReader(hostile, kOrigin).take_text(); });
  }
}

TEST(RingQueue, IsFirstInFirstOut) {
  RingQueue<int> queue;
  std::deque<int> model;
  auto random = test::generator();
  for (int i = 0; i < 10'000; ++i) {
    if (model.empty() || random() % 5 < 3) {
      queue.push() = i;
      model.push_back(i);
    } else {
      ASSERT_EQ(queue.front(), model.front());
      queue.pop();
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), model.size());
    for (std::size_t at = random() % 8; at < model.size(); at += 8) ASSERT_EQ(queue[at], model[at]);
  }
}

// Controls, C1 and ends of lines; directions, and their neighbours; bytes of an eight-bit terminal;
// a newline that is too long; a surrogate; beyond Unicode; cut.
TEST(Printable, ControlsAndWhatIsNoUtf8AreEscaped) {
  std::string printed;
  for (const std::string& text :
       {"a\nb\rc\td"s, "\x1b[31mred\x07\x7f"s, "a\0b"s, "\u009b31m"s, "a\u0085b\u2028c\u2029"s,
        "\u202e\u2066\u200f\u061c"s, "\u00a0\u2030\u2065"s, "\xff\xfe"s, "\x9b"s, "\xc0\x8a"s,
        "\xe0\x80\x8a"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "\xc3"s, "\xe2\x82x"s}) {
    printed += printable(text) + "\n";
  }
  test::expect_golden("core/base/texts.txt", "printable", printed);
}

TEST(Printable, OfLongTextsTheMiddleIsLeftOut) {
  const std::string text = printable("begin" + std::string(1 << 20, 'x') + "end");
  EXPECT_THAT(text, StartsWith("beginxxx"));
  EXPECT_THAT(text, EndsWith("xxxend"));
  EXPECT_THAT(text, HasSubstr(std::to_string((1 << 20) + 8 - 12252 - 4084) + " bytes left out"));
  EXPECT_LE(text.size(), kLongestMessage);
  EXPECT_EQ(printable(std::string(100, 'x'), 100), std::string(100, 'x'));
}

TEST(Printable, AppliedOnceMoreItChangesNothing) {
  std::mt19937_64 random = test::generator();
  // Pieces of every kind, so that cuts and escapes meet them in all ways.
  const std::string pieces[] = {"a",  "\n", "\x1b", "ö",        "\u009b",
                                "重", "𝛼",  "\xff", "\xe2\x82", "\0"s};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (auto left = random() % 200; left > 0; --left) text += pieces[random() % std::size(pieces)];
    const std::size_t longest = 64 + random() % 200;
    const std::string once = printable(text, longest);
    EXPECT_LE(once.size(), longest);
    EXPECT_EQ(printable(once, longest), once);
    const auto forbidden = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    EXPECT_TRUE(std::ranges::none_of(once, forbidden)) << once;
  }
}

TEST(TensorText, SaysWhatWasCalledAndRangesOfRanks) {
  std::string texts;
  for (const char* name :
       {"", "hora.unnamed.allreduce.0", "hora.unnamed.barrier.1", "hora.unnamed.", "hora.join",
        "hora.process_sets.add", "hora.process_sets.remove", "hora.joined"}) {
    texts += tensor_text(name) + "\n";
  }
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{},
                                     {4},
                                     {0, 1},
                                     {0, 1, 2},
                                     {0, 1, 2, 5, 7, 8, 10, 11, 12, 13},
                                     {INT_MAX, INT_MIN, INT_MIN + 1}}) {
    texts += ranks_text(ranks) + "\n";
  }
  test::expect_golden("core/base/texts.txt", "tensors and ranks", texts);
}

}  // namespace
}  // namespace hora::internal
