/// Draws random programs and trainings, and says how one of them is repeated.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <random>
#include <string>

namespace hora::internal::test {

/// Base of what draws: the same from the same seed, on every rank.
class RandomDraws {
 protected:
  explicit RandomDraws(std::uint64_t seed) : random_(seed) {}

  int below(int limit) { return static_cast<int>(random_() % static_cast<std::uint64_t>(limit)); }
  bool one_in(int n) { return below(n) == 0; }
  template <class Range>
  auto one_of(const Range& range) {
    return *(std::begin(range) + below(static_cast<int>(std::size(range))));
  }

  std::mt19937_64 random_;
};

/// The number in an environment variable, where it is set: a seed, or how many to run. Throws
/// std::invalid_argument where it does not begin with a number.
inline std::optional<std::uint64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  return std::stoull(text);
}

}  // namespace hora::internal::test
