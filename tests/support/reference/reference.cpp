#include "tests/support/reference/reference.h"

#include <cstring>
#include <numeric>

#include "tests/support/reference/reduction.h"

namespace hora::internal::test {
namespace {

template <class T>
Elements<T> elements_of(const Bytes& bytes) {
  Elements<T> elements(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

template <class T>
Bytes bytes_of(const Elements<T>& elements) {
  Bytes bytes(elements.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

double dot(const Numbers& a, const Numbers& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Numbers adasum(const Numbers& a, const Numbers& b) {
  const double of_a = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(a, a));
  const double of_b = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(b, b));
  Numbers result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

std::int64_t rows_before(const RowCounts& rows, std::size_t index) {
  return std::accumulate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(index),
                         std::int64_t{0});
}

void append(Exchanged& to, const Bytes& from, std::int64_t first, std::int64_t count,
            std::size_t row_bytes) {
  const auto begin = from.begin() + first * static_cast<std::ptrdiff_t>(row_bytes);
  to.bytes.insert(to.bytes.end(), begin, begin + count * static_cast<std::ptrdiff_t>(row_bytes));
  to.rows.push_back(count);
}

}  // namespace

double number_at(DataType type, const Bytes& bytes, std::size_t index) {
  double number = 0;
  with_type(type, [&]<class T>() {
    Stored<T> element;
    std::memcpy(&element, bytes.data() + index * sizeof element, sizeof element);
    number = static_cast<double>(element);
  });
  return number;
}

Numbers to_numbers(DataType type, const Bytes& bytes) {
  Numbers numbers;
  with_type(type, [&]<class T>() {
    for (const auto element : elements_of<T>(bytes)) {
      numbers.push_back(static_cast<double>(element));
    }
  });
  return numbers;
}

Bytes to_bytes(DataType type, const Numbers& numbers) {
  Bytes bytes;
  with_type(type, [&]<class T>() {
    Elements<T> elements;
    for (const double number : numbers) {
      if constexpr (is_float<T>) {
        elements.push_back(static_cast<T>(number));
      } else {
        elements.push_back(narrow<T>(static_cast<T>(static_cast<std::int64_t>(number))));
      }
    }
    bytes = bytes_of<T>(elements);
  });
  return bytes;
}

Bytes random_values(DataType type, std::size_t bytes, std::mt19937_64& random) {
  Bytes result;
  with_type(type, [&]<class T>() {
    std::uniform_real_distribution<double> uniform(-1, 1);
    Elements<T> elements(bytes / sizeof(T));
    for (auto& element : elements) {
      if constexpr (is_float<T>) element = static_cast<T>(uniform(random));
      if constexpr (!is_float<T>) element = static_cast<Stored<T>>(random());
      if constexpr (std::is_same_v<T, bool>) element %= 2;
    }
    result = bytes_of<T>(elements);
  });
  return result;
}

Bytes whole_numbers(DataType type, std::int64_t count, std::mt19937_64& random, int below) {
  Numbers numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) {
    const auto value = random() % static_cast<std::uint64_t>(below);
    // For booleans, true is not 1 alone.
    number = type == DataType::boolean && value % 3 == 0 ? 0 : static_cast<double>(value);
  }
  return to_bytes(type == DataType::boolean ? DataType::uint8 : type, numbers);
}

Bytes reduced(DataType type, ReduceOp op, const std::vector<Bytes>& inputs, Scales scales) {
  Bytes result;
  with_type(type, [&]<class T>() {
    std::vector<Elements<T>> elements;
    for (const Bytes& input : inputs) elements.push_back(elements_of<T>(input));
    result = bytes_of<T>(reduced<T>(op, elements, scales));
  });
  return result;
}

// Those beyond a power of two go into the first ones; then neighbours, until one is left.
Numbers adasum_of(std::vector<Numbers> members) {
  std::size_t power = 1;
  while (2 * power <= members.size()) power *= 2;
  for (std::size_t extra = power; extra < members.size(); ++extra) {
    members[extra - power] = adasum(members[extra - power], members[extra]);
  }
  for (members.resize(power); members.size() > 1; members.resize(members.size() / 2)) {
    for (std::size_t pair = 0; pair < members.size() / 2; ++pair) {
      members[pair] = adasum(members[2 * pair], members[2 * pair + 1]);
    }
  }
  return members.front();
}

double unit_roundoff(DataType type) {
  double result = 0;
  with_type(type, [&]<class T>() {
    if constexpr (is_float<T>) result = epsilon_of<T>() / 2;
  });
  return result;
}

Exchanged allgathered(const std::vector<Bytes>& inputs, const std::vector<RowCounts>& rows,
                      std::size_t row_bytes) {
  Exchanged result;
  for (std::size_t from = 0; from < inputs.size(); ++from) {
    append(result, inputs[from], 0, rows[from][0], row_bytes);
  }
  return result;
}

Exchanged alltoall_of(const std::vector<Bytes>& inputs, const std::vector<RowCounts>& rows,
                      std::size_t row_bytes, int rank) {
  const auto own_rank = static_cast<std::size_t>(rank);
  Exchanged result;
  for (std::size_t from = 0; from < inputs.size(); ++from) {
    append(result, inputs[from], rows_before(rows[from], own_rank), rows[from][own_rank],
           row_bytes);
  }
  return result;
}

Exchanged scattered(const Bytes& whole, std::int64_t rows, std::size_t row_bytes, int ranks,
                    int rank) {
  RowCounts pieces(static_cast<std::size_t>(ranks), 0);
  for (std::int64_t row = 0; row < rows; ++row) ++pieces[static_cast<std::size_t>(row % ranks)];
  const auto own_rank = static_cast<std::size_t>(rank);
  Exchanged result;
  append(result, whole, rows_before(pieces, own_rank), pieces[own_rank], row_bytes);
  return result;
}

}  // namespace hora::internal::test
