#include "bench/harness/values.h"

namespace bench {
namespace {

constexpr std::uint32_t period = 256;

std::int32_t common_part(std::size_t index, std::uint32_t round) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(index) + 7 * round) % period);
}

std::int32_t base_of(int rank) {
  return static_cast<std::int32_t>(period) * rank;
}

/// Elements that are not base + factor * (what all ranks have in common).
std::int64_t count_wrong(const float* data, std::size_t count, std::int32_t base,
                         std::int32_t factor, std::uint32_t round, std::size_t first) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += data[i] != static_cast<float>(base + factor * common_part(first + i, round)) ? 1 : 0;
  }
  return wrong;
}

}  // namespace

void write_values(float* data, std::size_t count, int rank, std::uint32_t round,
                  std::size_t first) {
  const std::int32_t base = base_of(rank);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(base + common_part(first + i, round));
  }
}

std::int64_t count_wrong_values(const float* data, std::size_t count, int rank, std::uint32_t round,
                                std::size_t first) {
  return count_wrong(data, count, base_of(rank), 1, round, first);
}

std::int64_t count_wrong_sums(const float* data, std::size_t count, int ranks, std::uint32_t round,
                              std::size_t first) {
  return count_wrong(data, count, base_of(ranks * (ranks - 1) / 2), ranks, round, first);
}

}  // namespace bench
