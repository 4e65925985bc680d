#include <numeric>
#include <random>
#include <type_traits>
#include <utility>

#include "tests/conformance/differential/program.h"
#include "tests/conformance/member.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reduction.h"
#include "tests/support/reference/reference.h"

namespace hora::internal::test {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

bool is_unsigned(DataType type) {
  bool result = false;
  with_type(type, [&]<class T>() { result = std::is_unsigned_v<T> && !std::is_same_v<T, bool>; });
  return result;
}

/// As doubles, which hold all that these are, and the results before they wrap.
Numbers numbers_of(const Program& program, const Operation& operation, int rank) {
  const auto& set = program.sets[operation.set];
  const auto place = at(place_in(set, rank));
  std::seed_seq own{operation.values >> 32U, operation.values & 0xffffffffU,
                    static_cast<std::uint64_t>(rank)};
  std::mt19937_64 random(own);
  Numbers numbers(at(count_of(operation.shape(place))));
  for (double& number : numbers) {
    number = static_cast<double>(random() % 5) - 2;
    // Divisible, so that the average is whole.
    if (operation.op == ReduceOp::average) number *= static_cast<double>(set.size());
    if (is_unsigned(operation.type)) number += 100;
    if (operation.type == DataType::boolean) number = number > 0 ? 1 : 0;
  }
  return numbers;
}

Numbers reduced_numbers(const Program& program, const Operation& operation) {
  const auto& set = program.sets[operation.set];
  Numbers result;
  for (const int rank : set) {
    Numbers numbers = numbers_of(program, operation, rank);
    for (double& number : numbers) number *= operation.prescale;
    if (result.empty()) {
      result = std::move(numbers);
      continue;
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = combined_numbers(operation.op, result[i], numbers[i]);
    }
  }
  for (double& number : result) {
    if (operation.op == ReduceOp::average) number /= static_cast<double>(set.size());
    number *= operation.postscale;
  }
  return result;
}

Contents exchanged(const Program& program, const Operation& operation, int rank) {
  const auto& set = program.sets[operation.set];
  const int own_rank = place_in(set, rank);
  const auto ranks = static_cast<int>(set.size());
  const std::size_t row_bytes = at(count_of(operation.row)) * size_of(operation.type);
  Exchanged result;
  if (operation.kind == Kind::reduce_scatter) {
    const Bytes whole = to_bytes(operation.type, reduced_numbers(program, operation));
    result = scattered(whole, operation.rows[0][0], row_bytes, ranks, own_rank);
  } else {
    std::vector<Bytes> inputs;
    for (const int from : set) inputs.push_back(input_of(program, operation, from).bytes);
    result = operation.kind == Kind::alltoall
                 ? alltoall_of(inputs, operation.rows, row_bytes, own_rank)
                 : allgathered(inputs, operation.rows, row_bytes);
  }
  Shape shape = operation.row;
  shape.insert(shape.begin(),
               std::accumulate(result.rows.begin(), result.rows.end(), std::int64_t{0}));
  return {std::move(shape), std::move(result.bytes), std::move(result.rows)};
}

}  // namespace

Contents input_of(const Program& program, const Operation& operation, int rank) {
  const auto place = at(place_in(program.sets[operation.set], rank));
  return {
      operation.shape(place), to_bytes(operation.type, numbers_of(program, operation, rank)), {}};
}

Contents expected_of(const Program& program, const Operation& operation, int rank) {
  const Contents own = input_of(program, operation, rank);
  switch (operation.kind) {
    case Kind::barrier:
      return own;
    case Kind::broadcast:
      return input_of(program, operation, operation.root);
    case Kind::allreduce:
      return {own.shape, to_bytes(operation.type, reduced_numbers(program, operation)), {}};
    default:
      return exchanged(program, operation, rank);
  }
}

}  // namespace hora::internal::test
