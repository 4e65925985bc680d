#include "tests/support/fake_gpu/batched_copy.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "ops/cuda/kernels.h"
#include "ops/local/kernels.h"

namespace hora::internal::test {
namespace {

// Holds the product of two doubles exactly.
#if LDBL_MANT_DIG >= 106
using Wide = long double;
#else
__extension__ using Wide = __float128;
#endif

template <class T>
T load_as(const std::byte* memory) {
  T value;
  std::memcpy(&value, memory, sizeof value);
  return value;
}

template <class T>
void store_as(std::byte* memory, T value) {
  std::memcpy(memory, &value, sizeof value);
}

Wide load(DataType type, const std::byte* memory) {
  switch (type) {
    case DataType::float16:
      return from_float16(load_as<std::uint16_t>(memory));
    case DataType::bfloat16:
      return from_bfloat16(load_as<std::uint16_t>(memory));
    case DataType::float32:
      return load_as<float>(memory);
    default:
      return load_as<double>(memory);
  }
}

/// Rounded to odd: rounding the result once more, to a type with at least two bits less, gives what
/// rounding `value` at once would. (Boldo and Melquiond, "Emulation of FMA and correctly rounded
/// sums", section 3.)
float to_odd(Wide value) {
  const auto nearest = static_cast<float>(value);
  const Wide back = nearest;
  if (back == value || value != value) return nearest;
  const bool too_far = value < 0 ? back < value : back > value;
  const float truncated = too_far ? std::nextafter(nearest, 0.0F) : nearest;
  const std::uint32_t odd = std::bit_cast<std::uint32_t>(truncated) | 1U;
  return std::bit_cast<float>(odd);
}

void store(DataType type, std::byte* memory, Wide value) {
  switch (type) {
    case DataType::float16:
      return store_as(memory, to_float16(to_odd(value)));
    case DataType::bfloat16:
      return store_as(memory, to_bfloat16(to_odd(value)));
    case DataType::float32:
      return store_as(memory, static_cast<float>(value));
    default:
      return store_as(memory, static_cast<double>(value));
  }
}

/// Largest magnitude that a product may have: it must be finite where the kernel forms it.
double limit_of(const BatchedCopy& copy) {
  const bool wide = copy.source_type == DataType::float64 || copy.target_type == DataType::float64;
  return wide ? copy.limit : std::min(copy.limit, static_cast<double>(FLT_MAX));
}

bool to_truth(const BatchedCopy& copy) {
  return copy.source_type == DataType::uint8 && copy.target_type == DataType::boolean;
}

}  // namespace

bool valid(const BatchedCopy& copy) {
  const bool types = is_plain(copy) || (to_truth(copy) && copy.scale == 1.0) ||
                     (is_floating_point(copy.source_type) && is_floating_point(copy.target_type));
  return types && reinterpret_cast<std::uintptr_t>(copy.flag) % size_of(copy.target_type) == 0 &&
         can_be_copied(copy.pieces, size_of(copy.source_type), size_of(copy.target_type));
}

void run(const BatchedCopy& copy) {
  const std::size_t source_bytes = size_of(copy.source_type);
  const std::size_t target_bytes = size_of(copy.target_type);
  const Wide limit = static_cast<Wide>(limit_of(copy));
  bool outside = false;
  for (const CopyPiece& piece : copy.pieces) {
    const auto elements = static_cast<std::size_t>(piece.elements);
    const auto* source = static_cast<const std::byte*>(piece.source);
    auto* target = static_cast<std::byte*>(piece.target);
    if (source == nullptr) {
      std::memset(target, 0, elements * target_bytes);
    } else if (is_plain(copy)) {
      std::memmove(target, source, elements * target_bytes);
    } else if (to_truth(copy)) {
      std::transform(source, source + elements, target,
                     [](std::byte byte) { return std::byte(byte != std::byte{0}); });
    } else {
      for (std::size_t i = 0; i < elements; ++i) {
        const Wide product =
            load(copy.source_type, source + i * source_bytes) * static_cast<Wide>(copy.scale);
        store(copy.target_type, target + i * target_bytes, product);
        outside |= !(product <= limit && -product <= limit);
      }
    }
  }
  if (outside && copy.flag != nullptr) {
    store(copy.target_type, static_cast<std::byte*>(copy.flag), 1);
  }
}

}  // namespace hora::internal::test
