#include "bench/allreduce_perf/values.h"

namespace bench {
namespace {

constexpr std::uint32_t period = 256;

std::int32_t common_part(std::size_t index, std::uint32_t round) {
  return static_cast<std::int32_t>((static_cast<std::uint32_t>(index) + 7 * round) % period);
}

}  // namespace

void write_values(float* data, std::size_t count, int rank, std::uint32_t round) {
  const auto base = static_cast<std::int32_t>(period) * rank;
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(base + common_part(i, round));
  }
}

std::int64_t count_wrong_sums(const float* data, std::size_t count, int ranks,
                              std::uint32_t round) {
  const auto bases = static_cast<std::int32_t>(period) * (ranks * (ranks - 1) / 2);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += data[i] != static_cast<float>(bases + ranks * common_part(i, round)) ? 1 : 0;
  }
  return wrong;
}

}  // namespace bench
