#include "tests/ops/cross/cross_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "ops/local/kernels.h"

namespace hora::test {
namespace {

// How a type is stored, and what it is summed in.
template <class Stored, class Sum>
struct Plain {
  using Memory = Stored;
  using Value = Sum;
  static Value load(Memory value) { return static_cast<Value>(value); }
  static Memory store(Value value) { return static_cast<Memory>(value); }
};
struct Float16 {
  using Memory = std::uint16_t;
  using Value = float;
  static Value load(Memory bits) { return from_float16(bits); }
  static Memory store(Value value) { return to_float16(value); }
};
struct Bfloat16 {
  using Memory = std::uint16_t;
  using Value = float;
  static Value load(Memory bits) { return from_bfloat16(bits); }
  static Memory store(Value value) { return to_bfloat16(value); }
};

/// Its sum is the logical or.
struct Boolean {
  using Memory = std::uint8_t;
  using Value = std::uint32_t;
  static Value load(Memory value) { return value; }
  static Memory store(Value value) { return value != 0; }
};

template <class Function>
auto with_type(DataType type, Function function) {
  switch (type) {
    case DataType::float16:
      return function(Float16{});
    case DataType::bfloat16:
      return function(Bfloat16{});
    case DataType::float32:
      return function(Plain<float, float>{});
    case DataType::float64:
      return function(Plain<double, double>{});
    case DataType::int32:
      return function(Plain<std::int32_t, std::uint32_t>{});
    case DataType::int64:
      return function(Plain<std::int64_t, std::uint64_t>{});
    case DataType::uint8:
      return function(Plain<std::uint8_t, std::uint32_t>{});
    case DataType::int8:
      return function(Plain<std::int8_t, std::uint32_t>{});
    case DataType::int16:
      return function(Plain<std::int16_t, std::uint32_t>{});
    case DataType::boolean:
      return function(Boolean{});
  }
  throw std::logic_error("unknown type");
}

template <class Traits>
typename Traits::Value load(const Bytes& bytes, std::size_t element) {
  typename Traits::Memory stored;
  std::memcpy(&stored, bytes.data() + element * sizeof(stored), sizeof(stored));
  return Traits::load(stored);
}

template <class Traits>
void store(Bytes& bytes, std::size_t element, typename Traits::Value value) {
  const typename Traits::Memory stored = Traits::store(value);
  std::memcpy(bytes.data() + element * sizeof(stored), &stored, sizeof(stored));
}

template <class Value>
Value scaled(Value value, double scale) {
  if constexpr (std::is_floating_point_v<Value>) {
    return value * static_cast<Value>(scale);
  } else {
    return value;
  }
}

}  // namespace

Bytes random_values(DataType type, std::size_t bytes, std::mt19937_64& random) {
  Bytes result(bytes);
  with_type(type, [&](auto traits) {
    using Traits = decltype(traits);
    for (std::size_t i = 0; i < bytes / sizeof(typename Traits::Memory); ++i) {
      if constexpr (std::is_floating_point_v<typename Traits::Value>) {
        std::uniform_real_distribution<typename Traits::Value> uniform(-1, 1);
        store<Traits>(result, i, uniform(random));
      } else if constexpr (std::is_same_v<Traits, Boolean>) {
        store<Traits>(result, i, static_cast<typename Traits::Value>(random() % 2));
      } else {
        store<Traits>(result, i, static_cast<typename Traits::Value>(random()));
      }
    }
  });
  return result;
}

Bytes sum_in_order(DataType type, const std::vector<Bytes>& inputs, double scale) {
  Bytes result(inputs.front().size());
  with_type(type, [&](auto traits) {
    using Traits = decltype(traits);
    for (std::size_t i = 0; i < result.size() / sizeof(typename Traits::Memory); ++i) {
      auto sum = load<Traits>(inputs.front(), i);
      for (std::size_t member = 1; member < inputs.size(); ++member) {
        sum += load<Traits>(inputs[member], i);
      }
      store<Traits>(result, i, scaled(sum, scale));
    }
  });
  return result;
}

}  // namespace hora::test
