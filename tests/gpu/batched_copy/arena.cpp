#include "tests/gpu/batched_copy/arena.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace hora::internal::test {
namespace {

constexpr std::size_t kAlignment = 256;

double some_number(std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0, -0.0, kInfinity, -kInfinity, std::nan(""), 1.0, 65504.0};
  if (random() % 64 == 0) return kSpecial[random() % std::size(kSpecial)];
  const double mantissa = std::uniform_real_distribution<double>(-2.0, 2.0)(random);
  return std::ldexp(mantissa, static_cast<int>(random() % 80) - 40);
}

template <class T>
void fill_with_numbers(std::vector<std::byte>& memory, std::mt19937_64& random) {
  for (std::size_t at = 0; at + sizeof(T) <= memory.size(); at += sizeof(T)) {
    const auto value = static_cast<T>(some_number(random));
    std::memcpy(memory.data() + at, &value, sizeof value);
  }
}

/// The bits of one element, in the order of the values: negative ones below positive ones.
std::int64_t place(DataType type, const std::byte* memory) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, memory, size_of(type));
  const std::uint64_t sign = std::uint64_t{1} << (8 * size_of(type) - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -magnitude : magnitude;
}

bool is_nan(DataType type, const std::byte* memory) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, memory, size_of(type));
  switch (type) {
    case DataType::float16:
      return (bits & 0x7fff) > 0x7c00;
    case DataType::bfloat16:
      return (bits & 0x7fff) > 0x7f80;
    case DataType::float32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case DataType::float64:
      return (bits & ~(std::uint64_t{1} << 63)) > 0x7ff0000000000000;
    default:
      return false;
  }
}

}  // namespace

std::vector<PieceShape> piece_shapes(int most_shift, std::int64_t tile) {
  std::vector<PieceShape> shapes;
  const auto add = [&](std::int64_t elements, int source_shift, int target_shift) {
    shapes.push_back({elements, source_shift, target_shift, shapes.size() % 7 == 6});
  };
  for (const std::int64_t elements : {0, 1, 2, 5, 16, 33, 100}) {
    for (int source = 0; source <= most_shift; ++source) {
      for (int target = 0; target <= most_shift; ++target) add(elements, source, target);
    }
  }
  for (const std::int64_t elements : {tile - 1, tile, tile + 1, 3 * tile + 5}) {
    for (const int shift : {0, 1, most_shift}) {
      add(elements, 0, shift);
      add(elements, shift, shift);
      add(elements, shift, 0);
    }
  }
  return shapes;
}

std::size_t place(std::size_t& bytes, std::size_t size, std::size_t shift) {
  const std::size_t begin = bytes + shift;
  bytes = (begin + size) / kAlignment * kAlignment + kAlignment;
  return begin;
}

Arena lay_out(const std::vector<PieceShape>& shapes, DataType source_type, DataType target_type) {
  Arena arena;
  for (const PieceShape& shape : shapes) {
    const auto elements = static_cast<std::size_t>(shape.elements);
    const auto source_shift = static_cast<std::size_t>(shape.source_shift) * size_of(source_type);
    const auto target_shift = static_cast<std::size_t>(shape.target_shift) * size_of(target_type);
    arena.source_offset.push_back(
        place(arena.source_bytes, elements * size_of(source_type), source_shift));
    arena.target_offset.push_back(
        place(arena.target_bytes, elements * size_of(target_type), target_shift));
  }
  return arena;
}

std::vector<CopyPiece> pieces_in(const Arena& arena, const std::vector<PieceShape>& shapes,
                                 const std::byte* source, std::byte* target) {
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    pieces.push_back({shapes[i].zeros ? nullptr : source + arena.source_offset[i],
                      target + arena.target_offset[i], shapes[i].elements});
  }
  return pieces;
}

void fill(std::vector<std::byte>& memory, DataType type, std::mt19937_64& random) {
  if (type == DataType::float32) return fill_with_numbers<float>(memory, random);
  if (type == DataType::float64) return fill_with_numbers<double>(memory, random);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

std::uint64_t distance(DataType type, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, size_of(type)) == 0) return 0;
  if (is_nan(type, a) && is_nan(type, b)) return 0;
  if (is_nan(type, a) || is_nan(type, b)) return std::numeric_limits<std::uint64_t>::max();
  const std::int64_t of_a = place(type, a);
  const std::int64_t of_b = place(type, b);
  // Zeros of either sign have one place, but not the same bits.
  return of_a == of_b ? 1 : static_cast<std::uint64_t>(of_a > of_b ? of_a - of_b : of_b - of_a);
}

}  // namespace hora::internal::test
