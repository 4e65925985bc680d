/// Expected results of a program, computed serially by each operation's definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/conformance/differential/program.h"

namespace hora::internal::test {

/// A tensor: what a rank brings, or what it has in the end.
struct Contents {
  Shape shape;
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> rows;  ///< as Result::rows(); empty of allreduce and broadcast
  bool operator==(const Contents&) const = default;
};

/// Small whole numbers: sums, products, averages and what scales make of them are exact in every
/// floating-point type; integers wrap.
Contents input_of(const Program& program, const Operation& operation, int rank);

/// A member's contents when the operation is complete.
Contents expected_of(const Program& program, const Operation& operation, int rank);

}  // namespace hora::internal::test
