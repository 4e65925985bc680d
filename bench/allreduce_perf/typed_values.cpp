#include "bench/allreduce_perf/typed_values.h"

#include <bit>
#include <stdexcept>
#include <type_traits>

namespace bench {
namespace {

/// base + factor * (0 to period - 1), by element.
struct Numbers {
  std::int32_t base, factor, period;
  std::uint32_t round;
  std::int32_t operator[](std::size_t index) const {
    const auto place =
        (static_cast<std::uint32_t>(index) + 7 * round) % static_cast<std::uint32_t>(period);
    return base + factor * static_cast<std::int32_t>(place);
  }
};

/// A whole number that the type has exactly.
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

template <class T>
void write_as(void* data, std::size_t count, const Numbers& numbers) {
  for (std::size_t i = 0; i < count; ++i) static_cast<T*>(data)[i] = encode<T>(numbers[i]);
}

template <class T>
std::int64_t count_wrong_as(const void* data, std::size_t count, const Numbers& numbers) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += static_cast<const T*>(data)[i] == encode<T>(numbers[i]) ? 0 : 1;
  }
  return wrong;
}

struct Type {
  const char* name;
  std::int32_t largest;  ///< up to which all whole numbers are exact, at least 2^16 as 2^30
  hora::DataType type;
  void (*write)(void*, std::size_t, const Numbers&);
  std::int64_t (*count_wrong)(const void*, std::size_t, const Numbers&);
};
template <class T>
constexpr Type make_type(const char* name, std::int32_t largest) {
  return {name, largest, hora::data_type_of<T>, write_as<T>, count_wrong_as<T>};
}
constexpr Type types[] = {
    make_type<float>("float", 1 << 24),        make_type<double>("double", 1 << 30),
    make_type<hora::Float16>("half", 1 << 11), make_type<hora::BFloat16>("bfloat16", 1 << 8),
    make_type<std::int8_t>("int8", 127),       make_type<std::uint8_t>("uint8", 255),
    make_type<std::int16_t>("int16", 32767),   make_type<std::uint16_t>("uint16", 65535),
    make_type<std::int32_t>("int32", 1 << 30), make_type<std::uint32_t>("uint32", 1 << 30),
    make_type<std::int64_t>("int64", 1 << 30), make_type<std::uint64_t>("uint64", 1 << 30),
};

const Type& row_of(hora::DataType type) {
  for (const Type& one : types) {
    if (one.type == type) return one;
  }
  throw std::invalid_argument("no sums in " + std::string(hora::name_of(type)));
}

}  // namespace

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const Type& one : types) names.emplace_back(one.name);
  return names;
}

hora::DataType type_of(const std::string& name) {
  for (const Type& one : types) {
    if (one.name == name) return one.type;
  }
  throw std::invalid_argument("no type is called " + name);
}

TypedValues::TypedValues(hora::DataType type, int ranks) : type_(type), ranks_(ranks) {
  const std::int32_t largest = row_of(type).largest;
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
  row_of(type_).write(data, count, {step_ * rank, 1, period_, round});
}

std::int64_t TypedValues::count_wrong_sums(const void* data, std::size_t count,
                                           std::uint32_t round) const {
  return row_of(type_).count_wrong(data, count,
                                   {step_ * (ranks_ * (ranks_ - 1) / 2), ranks_, period_, round});
}

}  // namespace bench
