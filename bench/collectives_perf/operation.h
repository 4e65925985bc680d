/// The collectives that are compared: how long what they take and give is, and what must be in it.
/// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/comparison.h"

namespace bench {

enum class Operation { allgather, broadcast, reduce_scatter, alltoall };
inline constexpr Operation all_operations[] = {Operation::allgather, Operation::broadcast,
                                               Operation::reduce_scatter, Operation::alltoall};
std::string name_of(Operation operation);

/// On each rank, in elements.
struct Extents {
  std::size_t input;
  std::size_t result;
};
/// `count`: of the longer of the two, a multiple of `ranks`; that is the size as nccl-tests has it.
Extents extents_of(Operation operation, std::size_t count, int ranks);

/// Bus bandwidth over count / time, as nccl-tests defines it.
double bus_factor(Operation operation, int ranks);

/// The root of broadcasts.
inline constexpr int root = 0;

/// Elements of `rank`'s result that are not what the inputs make it, where every rank wrote
/// write_values (harness/timed_loop.h) of `round`; reduce-scatter: the sum.
std::int64_t count_wrong(Operation operation, const float* result, std::size_t count, int rank,
                         int ranks, std::uint32_t round);

/// On 2 ranks, in one node or in two.
std::vector<Bar> collective_bars(bool one_node);

}  // namespace bench
