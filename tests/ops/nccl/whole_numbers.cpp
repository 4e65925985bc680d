#include "tests/ops/nccl/whole_numbers.h"

#include <cstring>

#include "ops/local/kernels.h"

namespace hora::test {

std::vector<std::byte> whole_numbers(DataType type, std::int64_t count, std::mt19937_64& random,
                                     int below) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(type));
  for (std::int64_t i = 0; i < count; ++i) {
    const int value = static_cast<int>(random() % static_cast<std::uint64_t>(below));
    std::byte* const at = bytes.data() + static_cast<std::size_t>(i) * size_of(type);
    const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
    switch (type) {
      case DataType::float16:
        put(to_float16(static_cast<float>(value)));
        break;
      case DataType::bfloat16:
        put(to_bfloat16(static_cast<float>(value)));
        break;
      case DataType::float32:
        put(static_cast<float>(value));
        break;
      case DataType::float64:
        put(static_cast<double>(value));
        break;
      case DataType::int32:
        put(static_cast<std::int32_t>(value));
        break;
      case DataType::int64:
        put(static_cast<std::int64_t>(value));
        break;
      case DataType::uint8:
        put(static_cast<std::uint8_t>(value));
        break;
      case DataType::int8:
        put(static_cast<std::int8_t>(value));
        break;
      case DataType::int16:
        put(static_cast<std::int16_t>(value));
        break;
      case DataType::boolean:
        put(static_cast<std::uint8_t>(value % 3 == 0 ? 0 : value));  // true is not 1 alone
        break;
    }
  }
  return bytes;
}

}  // namespace hora::test
