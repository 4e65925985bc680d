#include "tests/conformance/differential/model.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "tests/conformance/elements.h"

namespace hora::test {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// Calls `body.operator()<T>()` for the type.
template <class Body>
void with_type(DataType type, Body&& body) {
  for_each_type([&]<class T>() {
    if (data_type_of<T> == type) body.template operator()<T>();
  });
}

/// Elements as doubles, which hold all that these are, and the results before they wrap.
using Numbers = std::vector<double>;

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
    if (operation.type == DataType::uint8) number += 100;
    if (operation.type == DataType::boolean) number = number > 0 ? 1 : 0;
  }
  return numbers;
}

double combined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::min) return std::min(a, b);
  if (op == ReduceOp::max) return std::max(a, b);
  return op == ReduceOp::product ? a * b : a + b;
}

Numbers reduced(const Program& program, const Operation& operation) {
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
      result[i] = combined(operation.op, result[i], numbers[i]);
    }
  }
  for (double& number : result) {
    if (operation.op == ReduceOp::average) number /= static_cast<double>(set.size());
    number *= operation.postscale;
  }
  return result;
}

std::vector<std::byte> bytes_of(DataType type, const Numbers& numbers) {
  std::vector<std::byte> bytes(numbers.size() * size_of(type));
  with_type(type, [&]<class T>() {
    using Element = typename Elements<T>::value_type;
    Elements<T> elements;
    for (const double number : numbers) {
      if constexpr (is_float<T>) {
        elements.push_back(static_cast<T>(number));
      } else {
        elements.push_back(static_cast<Element>(static_cast<T>(static_cast<std::int64_t>(number))));
      }
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  });
  return bytes;
}

/// Rows [first, first + count) of a tensor in rows of this many elements.
void append_rows(Numbers& to, const Numbers& from, std::int64_t row, std::int64_t first,
                 std::int64_t count) {
  to.insert(to.end(), from.begin() + first * row, from.begin() + (first + count) * row);
}

std::int64_t rows_before(const std::vector<std::int64_t>& rows, std::size_t place) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < place; ++i) sum += rows[i];
  return sum;
}

Contents exchanged(const Program& program, const Operation& operation, int rank) {
  const auto& set = program.sets[operation.set];
  const auto me = at(place_in(set, rank));
  const std::int64_t row = count_of(operation.row);
  Contents result;
  Numbers numbers;
  if (operation.kind == Kind::reduce_scatter) {
    // Dealt out one at a time, the rows are as many for each as its piece is long.
    std::vector<std::int64_t> pieces(set.size(), 0);
    for (std::int64_t i = 0; i < operation.rows[0][0]; ++i) ++pieces[at(i) % set.size()];
    append_rows(numbers, reduced(program, operation), row, rows_before(pieces, me), pieces[me]);
    result.rows = {pieces[me]};
  } else {
    for (std::size_t place = 0; place < set.size(); ++place) {
      const Numbers theirs = numbers_of(program, operation, set[place]);
      const auto& rows = operation.rows[place];
      const std::size_t column = operation.kind == Kind::alltoall ? me : 0;
      append_rows(numbers, theirs, row, rows_before(rows, column), rows[column]);
      result.rows.push_back(rows[column]);
    }
  }
  result.shape = operation.row;
  result.shape.insert(result.shape.begin(), rows_before(result.rows, result.rows.size()));
  result.bytes = bytes_of(operation.type, numbers);
  return result;
}

}  // namespace

Contents input_of(const Program& program, const Operation& operation, int rank) {
  const auto place = at(place_in(program.sets[operation.set], rank));
  return {
      operation.shape(place), bytes_of(operation.type, numbers_of(program, operation, rank)), {}};
}

Contents expected_of(const Program& program, const Operation& operation, int rank) {
  const Contents mine = input_of(program, operation, rank);
  switch (operation.kind) {
    case Kind::barrier:
      return mine;
    case Kind::broadcast:
      return input_of(program, operation, operation.root);
    case Kind::allreduce:
      return {mine.shape, bytes_of(operation.type, reduced(program, operation)), {}};
    default:
      return exchanged(program, operation, rank);
  }
}

}  // namespace hora::test
