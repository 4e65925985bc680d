#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/types.h>

#include <concepts>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/elements.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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

TEST(DataType, OfCppTypes) {
  static_assert(
      data_type_of<float> == DataType::float32 && data_type_of<double> == DataType::float64 &&
      data_type_of<std::int32_t> == DataType::int32 &&
      data_type_of<std::int64_t> == DataType::int64 &&
      data_type_of<std::uint8_t> == DataType::uint8 &&
      data_type_of<std::int8_t> == DataType::int8 &&
      data_type_of<std::int16_t> == DataType::int16 && data_type_of<bool> == DataType::boolean &&
      data_type_of<std::uint16_t> == DataType::uint16 &&
      data_type_of<std::uint32_t> == DataType::uint32 &&
      data_type_of<std::uint64_t> == DataType::uint64 &&
      data_type_of<std::byte> == DataType::uint8 && data_type_of<Float16> == DataType::float16 &&
      data_type_of<BFloat16> == DataType::bfloat16);
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

TEST(TensorView, OfConstMemoryIsReadOnly) {
  const std::vector<double> values(6);
  const double& one = values.front();
  static_assert(std::same_as<decltype(view(values)), ConstTensorView>);
  static_assert(std::same_as<decltype(view(one)), ConstTensorView>);
  static_assert(std::same_as<decltype(view(values.data(), 6)), ConstTensorView>);
  static_assert(std::same_as<decltype(view(std::span(values))), ConstTensorView>);
  static_assert(std::convertible_to<TensorView, ConstTensorView>);
  static_assert(!std::convertible_to<ConstTensorView, TensorView>);
  EXPECT_EQ(view(values).data, values.data());
  EXPECT_EQ(view(values.data(), {2, 3}).shape, (Shape{2, 3}));
  EXPECT_EQ(view(values).elements(), 6);
  EXPECT_EQ(view(values).bytes(), 48u);
  EXPECT_EQ(view(one).shape, Shape{});
}

TEST(ProcessSet, IsANumberOfItsOwnKind) {
  static_assert(!std::convertible_to<int, ProcessSet> && !std::convertible_to<ProcessSet, int>);
  EXPECT_EQ(kWorld, ProcessSet());
  EXPECT_EQ(kWorld.number(), 0u);
  EXPECT_EQ(ProcessSet(2), ProcessSet(2));
  EXPECT_LT(ProcessSet(2), ProcessSet(10));
  const std::unordered_set<ProcessSet> sets = {ProcessSet(1), kWorld, ProcessSet(1)};
  EXPECT_EQ(sets.size(), 2u);
  std::ostringstream text;
  text << ProcessSet(10);
  EXPECT_EQ(text.str(), "10");
  EXPECT_EQ(to_string(ProcessSet(10)), "10");
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

TEST(Error, AnotherThreadsIsNotTakenForOnesOwn) {
  std::optional<Error> error;
  std::thread([&] { error.emplace(ErrorCode::shut_down, "elsewhere"); }).join();
  EXPECT_EQ(error_in_flight(), "");
  error.reset();
  error.emplace(ErrorCode::shut_down, std::string(5000, 'x'));
  EXPECT_EQ(error_in_flight(), std::string(1000, 'x')) << "as far as it fits";
  std::thread([&] { error.reset(); }).join();
}

}  // namespace
}  // namespace hora::internal
