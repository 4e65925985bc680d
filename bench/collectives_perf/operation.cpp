#include "bench/collectives_perf/operation.h"

#include "bench/harness/timed_loop.h"

namespace bench {

std::string name_of(Operation operation) {
  constexpr const char* names[] = {"allgather", "broadcast", "reduce_scatter", "alltoall"};
  return names[static_cast<std::size_t>(operation)];
}

Extents extents_of(Operation operation, std::size_t count, int ranks) {
  const std::size_t part = count / static_cast<std::size_t>(ranks);
  if (operation == Operation::allgather) return {part, count};
  if (operation == Operation::reduce_scatter) return {count, part};
  return {count, count};
}

double bus_factor(Operation operation, int ranks) {
  return operation == Operation::broadcast ? 1.0 : static_cast<double>(ranks - 1) / ranks;
}

std::int64_t count_wrong(Operation operation, const float* result, std::size_t count, int rank,
                         int ranks, std::uint32_t round) {
  const std::size_t part = count / static_cast<std::size_t>(ranks);
  const std::size_t own = static_cast<std::size_t>(rank) * part;
  if (operation == Operation::broadcast) return count_wrong_values(result, count, root, round);
  if (operation == Operation::reduce_scatter) {
    return count_wrong_sums(result, part, ranks, round, own);
  }
  const std::size_t first = operation == Operation::alltoall ? own : 0;
  std::int64_t wrong = 0;
  for (int from = 0; from < ranks; ++from) {
    wrong += count_wrong_values(result + static_cast<std::size_t>(from) * part, part, from, round,
                                first);
  }
  return wrong;
}

std::vector<Bar> collective_bars(bool one_node) {
  constexpr double not_much_slower = 1.0 / 1.2;
  std::vector<Bar> bars{{"hora_bucket", "vs_mpi", {"mpi"}, not_much_slower, 64 * kib},
                        {"hora", "vs_mpi", {"mpi"}, not_much_slower, 64 * kib}};
  if (one_node) bars.push_back({"hora_bucket", "vs_mpi", {"mpi"}, 1.5, 1 * mib});
  return bars;
}

}  // namespace bench
