#include "tests/ops/cross/adasum_model.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "ops/local/kernels.h"

namespace hora::test {
namespace {

template <class Stored, class Function>
Numbers numbers_of(const std::vector<std::byte>& bytes, Function widen) {
  Numbers numbers(bytes.size() / sizeof(Stored));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    numbers[i] = static_cast<double>(widen(stored));
  }
  return numbers;
}

template <class Function>
std::vector<std::byte> bytes_of(const Numbers& numbers, Function narrow) {
  using Stored = decltype(narrow(0.0));
  std::vector<std::byte> bytes(numbers.size() * sizeof(Stored));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Stored stored = narrow(numbers[i]);
    std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
  }
  return bytes;
}

double dot(const Numbers& a, const Numbers& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Numbers adasum(const Numbers& a, const Numbers& b) {
  const double of_a = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(a, a));
  const double of_b = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(b, b));
  Numbers result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

}  // namespace

Numbers to_numbers(DataType type, const std::vector<std::byte>& bytes) {
  switch (type) {
    case DataType::float16:
      return numbers_of<std::uint16_t>(bytes, from_float16);
    case DataType::bfloat16:
      return numbers_of<std::uint16_t>(bytes, from_bfloat16);
    case DataType::float32:
      return numbers_of<float>(bytes, [](float value) { return value; });
    case DataType::float64:
      return numbers_of<double>(bytes, [](double value) { return value; });
    default:
      throw std::logic_error("no floating-point type");
  }
}

std::vector<std::byte> to_bytes(DataType type, const Numbers& numbers) {
  switch (type) {
    case DataType::float16:
      return bytes_of(numbers, [](double value) { return to_float16(static_cast<float>(value)); });
    case DataType::bfloat16:
      return bytes_of(numbers, [](double value) { return to_bfloat16(static_cast<float>(value)); });
    case DataType::float32:
      return bytes_of(numbers, [](double value) { return static_cast<float>(value); });
    case DataType::float64:
      return bytes_of(numbers, [](double value) { return value; });
    default:
      throw std::logic_error("no floating-point type");
  }
}

double unit_of(DataType type) {
  switch (type) {
    case DataType::float16:
      return 0x1p-11;
    case DataType::bfloat16:
      return 0x1p-8;
    case DataType::float32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

// Those beyond a power of two go into the first ones; then neighbours, until one is left.
Numbers adasum_of(std::vector<Numbers> members) {
  std::size_t power = 1;
  while (2 * power <= members.size()) power *= 2;
  for (std::size_t extra = power; extra < members.size(); ++extra) {
    members[extra - power] = adasum(members[extra - power], members[extra]);
  }
  for (members.resize(power); members.size() > 1; members.resize(members.size() / 2)) {
    for (std::size_t pair = 0; pair < members.size() / 2; ++pair) {
      members[pair] = adasum(members[2 * pair], members[2 * pair + 1]);
    }
  }
  return members.front();
}

}  // namespace hora::test
