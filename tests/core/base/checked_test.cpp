#include "core/base/checked.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "core/base/sync.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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

}  // namespace
}  // namespace hora::internal
