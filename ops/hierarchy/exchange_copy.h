/// Moving the transfers of a layout inside a node.
#pragma once

#include <cstddef>

#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"

namespace hora {

/// The result of an exchange as the target of copies: past the caches where it is too long to be
/// read from them afterwards.
class ExchangeTarget {
 public:
  ExchangeTarget() noexcept = default;
  ExchangeTarget(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* at(std::size_t offset) const { return data_ + offset; }
  void copy(std::size_t offset, const std::byte* in, std::size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// From the node's inputs to `out`, where the layout's bytes lie one after the other. Sums are not
/// scaled.
void gather(const BoundUnit& unit, const ByteLayout& layout, std::byte* out);

/// From `in`, where the layout's bytes lie one after the other, those that come to `local_rank`
/// into its result.
void scatter(const ByteLayout& layout, int local_rank, const std::byte* in,
             const ExchangeTarget& result);

/// Straight from the node's inputs into this rank's result what comes to `local_rank`, this one, in
/// local rank order; sums are scaled.
void copy_to_result(const BoundUnit& unit, const ByteLayout& layout, int local_rank,
                    const ExchangeTarget& result);

}  // namespace hora
