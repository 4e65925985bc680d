/// Values that ranks write and sum in each of hora's types. Pure.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// Types that sums are measured in, by nccl-tests' names: all of hora's but bool.
std::vector<std::string> type_names();
hora::DataType type_of(const std::string& name);

/// Whole numbers that differ between ranks, rounds and neighbouring elements, and whose sums over
/// all ranks are exact in the type, whatever their order.
class TypedValues {
 public:
  /// Throws std::invalid_argument where sums of so many ranks would not be exact.
  TypedValues(hora::DataType type, int ranks);

  hora::DataType type() const { return type_; }
  std::size_t size() const { return hora::size_of(type_); }

  /// `data`: aligned for the type.
  void write(void* data, std::size_t count, int rank, std::uint32_t round) const;
  /// Elements of `data` that are not the sum of what all ranks wrote.
  std::int64_t count_wrong_sums(const void* data, std::size_t count, std::uint32_t round) const;

 private:
  hora::DataType type_;
  int ranks_;
  std::int32_t period_;  ///< elements differ by 0 to period - 1
  std::int32_t step_;    ///< ranks differ by multiples of it
};

}  // namespace bench
