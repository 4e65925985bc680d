/// A rank's finding as a number, of which the least of all ranks is that of all. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace hora::internal {

enum class Finite : std::uint8_t { yes, infinite, nan };

/// `tensor` counts the loss as 0 and parameters from 1 on.
struct Finding {
  std::size_t tensor = 0;
  int rank = 0;
  bool is_nan = false;
  bool operator==(const Finding&) const = default;
};

/// min's identity, which joined ranks contribute.
inline constexpr std::int64_t kNothingFound = INT64_MAX;

/// A finding in an earlier tensor has a lower number; in one tensor, that of a lower rank.
inline std::int64_t number_of(const std::optional<Finding>& finding, int ranks) {
  if (!finding) return kNothingFound;
  const auto tensor = static_cast<std::int64_t>(finding->tensor);
  return (tensor * ranks + finding->rank) * 2 + (finding->is_nan ? 1 : 0);
}

inline std::optional<Finding> finding_of(std::int64_t number, int ranks) {
  if (number == kNothingFound) return std::nullopt;
  return Finding{static_cast<std::size_t>(number / 2 / ranks), static_cast<int>(number / 2 % ranks),
                 number % 2 == 1};
}

}  // namespace hora::internal
