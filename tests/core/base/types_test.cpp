// Types, checks, and texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <hora/types.h>

#include <algorithm>
#include <climits>
#include <deque>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "core/base/sync.h"
#include "core/base/text.h"
#include "tests/support/expect_error.h"
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
  constexpr std::pair<std::string_view, std::size_t> kExpected[] = {{"float16", 2},
                                                                    {"bfloat16", 2},
                                                                    {"float32", sizeof(float)},
                                                                    {"float64", sizeof(double)},
                                                                    {"int32", 4},
                                                                    {"int64", 8},
                                                                    {"uint8", 1},
                                                                    {"int8", 1},
                                                                    {"int16", 2},
                                                                    {"bool", 1},
                                                                    {"uint16", 2},
                                                                    {"uint32", 4},
                                                                    {"uint64", 8}};
  ASSERT_EQ(std::size(kExpected), static_cast<std::size_t>(last_of<DataType>) + 1);
  ASSERT_EQ(std::size(kExpected), std::size(test::kAllTypes));
  for (std::size_t i = 0; i < std::size(kExpected); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(name_of(type), kExpected[i].first);
    EXPECT_EQ(size_of(type), kExpected[i].second) << name_of(type);
    EXPECT_EQ(is_floating_point(type), name_of(type).find("float") != std::string_view::npos);
  }
}

TEST(Names, OfOperationsDevicesAndErrors) {
  std::string names;
  for (int i = 0; i < 7; ++i) names.append(name_of(static_cast<ReduceOp>(i))).append(" ");
  EXPECT_EQ(names, "average sum min max product adasum unknown operation ");
  EXPECT_EQ(name_of(DeviceKind::cpu), "cpu");
  EXPECT_EQ(name_of(DeviceKind::cuda), "cuda");
  EXPECT_EQ(name_of(static_cast<DeviceKind>(2)), "unknown device");
  names.clear();
  for (int i = 0; i < 10; ++i) names.append(name_of(static_cast<ErrorCode>(i))).append(" ");
  EXPECT_EQ(names,
            "invalid_argument mismatch duplicate_name invalid_setting shut_down out_of_memory "
            "transport invalid_use timeout unknown error ");
}

TEST(TensorView, CountsElementsAndBytes) {
  EXPECT_EQ(shaped({}).elements(), 1);
  EXPECT_EQ(shaped({}).bytes(), 4u);
  EXPECT_EQ(shaped({2, 3, 5}).elements(), 30);
  EXPECT_EQ(shaped({2, 3, 5}, DataType::float64).bytes(), 240u);
  EXPECT_EQ(shaped({2, 3, 5}, DataType::uint8).bytes(), 30u);
  EXPECT_EQ(shaped({7, 0}).elements(), 0);
}

TEST(TensorView, RefusesMoreBytesThanCanBeAddressed) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  EXPECT_EQ(shaped({kMost}, DataType::uint8).elements(), kMost);
  EXPECT_EQ(shaped({kMost / 4}).elements(), kMost / 4);
  EXPECT_THAT(refusal(shaped({kMost / 4 + 1})), HasSubstr("[70368744177665]"));
  EXPECT_THAT(refusal(shaped({kMost, 2}, DataType::uint8)), HasSubstr("2^48"));
  // Products that wrap to 0, and to a small number.
  EXPECT_THAT(refusal(shaped({std::int64_t{1} << 32, std::int64_t{1} << 32})), HasSubstr("2^48"));
  EXPECT_THAT(refusal(shaped({std::int64_t{1} << 62, 4, 3})), HasSubstr("2^48"));
  EXPECT_THAT(refusal(shaped({std::numeric_limits<std::int64_t>::max()})), HasSubstr("2^48"));
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
  using namespace std::string_literals;
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

TEST(Error, IsKnownToDestructorsWhileItUnwindsTheStack) {
  std::string seen;
  try {
    const Witness witness{seen};
    throw Error(ErrorCode::shut_down, "gone");
  } catch (const Error&) {
  }
  EXPECT_EQ(seen, "gone");
  EXPECT_EQ(error_in_flight(), "");
}

TEST(Error, OneThatIsOverIsNotTakenForAnotherException) {
  std::string seen = "not run";
  try {
    throw Error(ErrorCode::shut_down, "over");
  } catch (const Error&) {
  }
  try {
    const Witness witness{seen};
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(seen, "");
}

constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, WhatDoesNotFitIsNoCountEverAfter) {
  EXPECT_FALSE((Checked(kAll) + 1).at_most(kAll));
  EXPECT_FALSE((Checked(std::uint64_t{1} << 32) * (std::uint64_t{1} << 32)).at_most(kAll));
  EXPECT_FALSE((Checked(kAll) * 2 * 0).at_most(kAll));
  EXPECT_FALSE((Checked(1) + (Checked(kAll) + 1)).at_most(kAll));
  EXPECT_FALSE(Checked(-1).at_most(kAll));
  EXPECT_FALSE((Checked(std::int64_t{-1}) * 0 + 1).at_most(kAll));
}

TEST(Checked, AsWideArithmetic) {
  auto random = test::generator();
  for (int i = 0; i < 20000; ++i) {
    const auto any = [&] { return static_cast<std::uint64_t>(random()) >> (random() % 64); };
    const std::uint64_t a = any();
    const std::uint64_t b = any();
    const std::uint64_t c = any();
    const auto wide = static_cast<long double>(a) * static_cast<long double>(b) +
                      static_cast<long double>(c);  // 64 bits of mantissa
    const Checked narrow = Checked(a) * b + c;
    if (wide < 0x1p63L) {
      ASSERT_TRUE(narrow.at_most(kAll)) << a << " " << b << " " << c;
      ASSERT_EQ(narrow.value(), a * b + c);
    } else if (wide > 0x1p65L) {
      ASSERT_FALSE(narrow.at_most(kAll)) << a << " " << b << " " << c;
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
    refusal([&] { BoundedReader(hostile, kOrigin).take_count(1); });
    refusal([&] { BoundedReader(hostile, kOrigin).take_count(8); });
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
    if (!model.empty()) {
      const std::size_t at = random() % model.size();
      ASSERT_EQ(queue[at], model[at]);
    }
  }
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(printable("\x1b[31mred\x07\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(printable("a\0b"s), "a\\x00b");
}

TEST(Printable, ControlsBeyondAsciiAreEscaped) {
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m") << "C1";
  EXPECT_EQ(printable("a\u0085b\u2028c\u2029"), "a\\u0085b\\u2028c\\u2029") << "ends of lines";
  EXPECT_EQ(printable("\u202e\u2066\u200f\u061c"), "\\u202e\\u2066\\u200f\\u061c") << "directions";
  EXPECT_EQ(printable("\u00a0\u2030\u2065"), "\u00a0\u2030\u2065") << "their neighbours";
}

TEST(Printable, WhatIsNoUtf8IsEscaped) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\x9b"), "\\x9b") << "C1 of an eight-bit terminal";
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a") << "a newline, but too long";
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("\xc3"), "\\xc3") << "cut";
  EXPECT_EQ(printable("\xe2\x82x"), "\\xe2\\x82x");
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

TEST(TensorText, WithoutANameItSaysWhatWasCalled) {
  EXPECT_EQ(tensor_text(""), "an unnamed tensor");
  EXPECT_EQ(tensor_text("hora.unnamed.allreduce.0"), "the unnamed allreduce");
  EXPECT_EQ(tensor_text("hora.unnamed.barrier.1"), "the unnamed barrier in slot 1");
  EXPECT_EQ(tensor_text("hora.unnamed."), "the unnamed ");
}

TEST(TensorText, OwnCalls) {
  EXPECT_EQ(tensor_text("hora.join"), "join()");
  EXPECT_EQ(tensor_text("hora.process_sets.add"), "add_process_set()");
  EXPECT_EQ(tensor_text("hora.process_sets.remove"), "remove_process_set()");
  EXPECT_EQ(tensor_text("hora.joined"), "tensor \"hora.joined\"");
}

TEST(RanksText, WritesRunsOfThreeAndMoreAsRanges) {
  const auto text = [](const std::vector<int>& ranks) { return ranks_text(ranks); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({4}), "4");
  EXPECT_EQ(text({0, 1}), "0, 1");
  EXPECT_EQ(text({0, 1, 2}), "0-2");
  EXPECT_EQ(text({0, 1, 2, 5, 7, 8, 10, 11, 12, 13}), "0-2, 5, 7, 8, 10-13");
  EXPECT_EQ(text({INT_MAX, INT_MIN, INT_MIN + 1}), "2147483647, -2147483648, -2147483647");
}

}  // namespace
}  // namespace hora::internal
