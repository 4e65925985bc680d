/// Results of collectives, computed serially by each one's definition, on bytes of any type; and
/// values for their inputs.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/local/kernel_table.h"

namespace hora::internal::test {

using Bytes = std::vector<std::byte>;
using Numbers = std::vector<double>;
using RowCounts = std::vector<std::int64_t>;

/// The elements as numbers; and back, rounded, integers modulo 2^bits.
double number_at(DataType type, const Bytes& bytes, std::size_t index);
Numbers to_numbers(DataType type, const Bytes& bytes);
Bytes to_bytes(DataType type, const Numbers& numbers);

/// Random values: integers of the full range, booleans, floating-point numbers in (-1, 1), whose
/// sums are rounded.
Bytes random_values(DataType type, std::size_t bytes, std::mt19937_64& random);
/// Whole numbers from 0: their reductions are exact in every order, sums of some in every type,
/// products of up to 4 in floating-point types if they are below 4. Booleans are any byte.
Bytes whole_numbers(DataType type, std::int64_t count, std::mt19937_64& random, int below = 12);

/// In the order of `inputs`; an average is the sum, with its factor in `scales`.
Bytes reduced(DataType type, ReduceOp op, const std::vector<Bytes>& inputs, Scales scales = {});
/// Adasum of the vectors of one tensor, one a member, in double.
Numbers adasum_of(std::vector<Numbers> members);
/// Half of the distance from 1 to a floating-point type's next number. Else 0.
double unit_roundoff(DataType type);

/// One rank's rows after an exchange, and how many of them come from each rank.
struct Exchanged {
  Bytes bytes;
  RowCounts rows;
};
/// Everyone's rows in the ranks' order; `rows[from][0]` are those of a rank.
Exchanged allgathered(const std::vector<Bytes>& inputs, const std::vector<RowCounts>& rows,
                      std::size_t row_bytes);
/// `rows[from][to]`.
Exchanged alltoall_of(const std::vector<Bytes>& inputs, const std::vector<RowCounts>& rows,
                      std::size_t row_bytes, int rank);
/// This rank's rows of a reduced tensor: dealt out one at a time, there are as many for each as its
/// piece is long.
Exchanged scattered(const Bytes& whole, std::int64_t rows, std::size_t row_bytes, int ranks,
                    int rank);

}  // namespace hora::internal::test
