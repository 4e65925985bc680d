#include "tests/gpu/collectives/values.h"

#include <cstring>
#include <random>

#include "ops/local/kernels.h"
#include "tests/support/seed.h"

namespace hora::test {
namespace {

template <class T>
void store(Bytes& values, std::size_t index, T value) {
  std::memcpy(values.data() + index * sizeof(T), &value, sizeof value);
}

template <class T>
T load(const Bytes& values, std::size_t index) {
  T value;
  std::memcpy(&value, values.data() + index * sizeof(T), sizeof value);
  return value;
}

void store_number(DataType type, Bytes& values, std::size_t index, double number) {
  switch (type) {
    case DataType::float16:
      return store(values, index, to_float16(static_cast<float>(number)));
    case DataType::bfloat16:
      return store(values, index, to_bfloat16(static_cast<float>(number)));
    case DataType::float32:
      return store(values, index, static_cast<float>(number));
    default:
      return store(values, index, number);
  }
}

}  // namespace

Bytes random_values(DataType type, std::int64_t count, std::uint64_t salt) {
  std::mt19937_64 random = generator(salt + 1);
  Bytes values(static_cast<std::size_t>(count) * size_of(type));
  if (!is_floating_point(type)) {
    for (std::byte& byte : values) byte = static_cast<std::byte>(random());
    return values;
  }
  std::uniform_real_distribution<double> numbers(-1.0, 1.0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    store_number(type, values, i, numbers(random));
  }
  return values;
}

double number_at(DataType type, const Bytes& values, std::size_t index) {
  switch (type) {
    case DataType::float16:
      return from_float16(load<std::uint16_t>(values, index));
    case DataType::bfloat16:
      return from_bfloat16(load<std::uint16_t>(values, index));
    case DataType::float32:
      return load<float>(values, index);
    case DataType::float64:
      return load<double>(values, index);
    case DataType::int32:
      return load<std::int32_t>(values, index);
    case DataType::int64:
      return static_cast<double>(load<std::int64_t>(values, index));
    case DataType::uint8:
      return load<std::uint8_t>(values, index);
    case DataType::int8:
      return load<std::int8_t>(values, index);
    case DataType::int16:
      return load<std::int16_t>(values, index);
    case DataType::boolean:
      return load<std::uint8_t>(values, index);
  }
  return 0.0;
}

double tolerance(DataType type, int ranks) {
  const double last_place = [&] {
    switch (type) {
      case DataType::float16:
        return 0x1p-11;
      case DataType::bfloat16:
        return 0x1p-8;
      case DataType::float32:
        return 0x1p-24;
      case DataType::float64:
        return 0x1p-53;
      default:
        return 0.0;
    }
  }();
  return 2.0 * (ranks + 1) * ranks * last_place;
}

}  // namespace hora::test
