#include "bench/allreduce_perf/typed_values.h"

#include <bit>
#include <stdexcept>
#include <type_traits>

namespace bench {
namespace {

struct NamedType {
  const char* name;
  hora::DataType type;
  std::int32_t largest;  ///< up to which all whole numbers are exact, at least 2^16 as 2^30
};
constexpr NamedType types[] = {
    {"float", hora::DataType::float32, 1 << 24}, {"double", hora::DataType::float64, 1 << 30},
    {"half", hora::DataType::float16, 1 << 11},  {"bfloat16", hora::DataType::bfloat16, 1 << 8},
    {"int8", hora::DataType::int8, 127},         {"uint8", hora::DataType::uint8, 255},
    {"int16", hora::DataType::int16, 32767},     {"uint16", hora::DataType::uint16, 65535},
    {"int32", hora::DataType::int32, 1 << 30},   {"uint32", hora::DataType::uint32, 1 << 30},
    {"int64", hora::DataType::int64, 1 << 30},   {"uint64", hora::DataType::uint64, 1 << 30},
};

std::int32_t largest_of(hora::DataType type) {
  for (const NamedType& one : types) {
    if (one.type == type) return one.largest;
  }
  throw std::invalid_argument("no sums in " + std::string(hora::name_of(type)));
}

/// Of a whole number that the type has exactly.
template <class T>
T encode(std::int32_t value) {
  if constexpr (std::is_same_v<T, hora::BFloat16>) {
    return {
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)};
  } else if constexpr (std::is_same_v<T, hora::Float16>) {
    // float's exponent has 3 bits more, with a bias of 127 instead of 15; its fraction 13 more.
    if (value == 0) return {};
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return {static_cast<std::uint16_t>((bits >> 13) - ((127U - 15U) << 10))};
  } else {
    return static_cast<T>(value);
  }
}

/// Calls `function` with a value of the type.
template <class Function>
auto with_type(hora::DataType type, Function function) {
  switch (type) {
    case hora::DataType::float16:
      return function(hora::Float16{});
    case hora::DataType::bfloat16:
      return function(hora::BFloat16{});
    case hora::DataType::float32:
      return function(float{});
    case hora::DataType::float64:
      return function(double{});
    case hora::DataType::int32:
      return function(std::int32_t{});
    case hora::DataType::int64:
      return function(std::int64_t{});
    case hora::DataType::uint8:
      return function(std::uint8_t{});
    case hora::DataType::int8:
      return function(std::int8_t{});
    case hora::DataType::int16:
      return function(std::int16_t{});
    case hora::DataType::uint16:
      return function(std::uint16_t{});
    case hora::DataType::uint32:
      return function(std::uint32_t{});
    case hora::DataType::uint64:
      return function(std::uint64_t{});
    case hora::DataType::boolean:
      break;
  }
  throw std::invalid_argument("no sums of bool");
}

std::int32_t common_part(std::size_t index, std::uint32_t round, std::int32_t period) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(index) + 7 * round) %
                                   static_cast<std::uint32_t>(period));
}

}  // namespace

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const NamedType& one : types) names.emplace_back(one.name);
  return names;
}

hora::DataType type_of(const std::string& name) {
  for (const NamedType& one : types) {
    if (one.name == name) return one.type;
  }
  throw std::invalid_argument("no type is called " + name);
}

TypedValues::TypedValues(hora::DataType type, int ranks) : type_(type), ranks_(ranks) {
  const std::int32_t largest = largest_of(type);
  // The largest sum is ranks * (period - 1) + step * (0 + 1 + ... + ranks - 1).
  const std::int64_t pairs = static_cast<std::int64_t>(ranks) * (ranks - 1) / 2;
  for (const std::int32_t period : {256, 16, 4}) {
    for (const std::int32_t step : {period, 3}) {
      if (static_cast<std::int64_t>(ranks) * (period - 1) + step * pairs > largest) continue;
      period_ = period;
      step_ = step;
      return;
    }
  }
  throw std::invalid_argument("sums of " + std::to_string(ranks) + " ranks are not exact in " +
                              std::string(hora::name_of(type)) + ": take fewer, or another type");
}

void TypedValues::write(void* data, std::size_t count, int rank, std::uint32_t round) const {
  with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    auto* values = static_cast<T*>(data);
    const std::int32_t base = step_ * rank;
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = encode<T>(base + common_part(i, round, period_));
    }
  });
}

std::int64_t TypedValues::count_wrong_sums(const void* data, std::size_t count,
                                           std::uint32_t round) const {
  return with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    const auto* values = static_cast<const T*>(data);
    const std::int32_t base = step_ * (ranks_ * (ranks_ - 1) / 2);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const T expected = encode<T>(base + ranks_ * common_part(i, round, period_));
      wrong += values[i] == expected ? 0 : 1;
    }
    return wrong;
  });
}

}  // namespace bench
