#include "ops/hierarchy/exchange_sizes.h"

#include <algorithm>
#include <cstring>

namespace hora::internal {

ExchangeSizes::ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node)
    : unit_(unit),
      topology_(topology),
      node_(node),
      each_(extents_of_rank(unit.unit.kind, topology.size())),
      of_node_(topology.ranks_of_node.size()),
      none_(each_, 0) {}

const std::vector<int>& ExchangeSizes::ranks_of(int node) const {
  return topology_.ranks_of_node[static_cast<std::size_t>(node)];
}

bool ExchangeSizes::must_be_exchanged() const {
  return unit_.unit.kind != OperationKind::reduce_scatter && topology_.nodes() > 1;
}

std::size_t ExchangeSizes::bytes_of(int node) const {
  return ranks_of(node).size() * each_ * sizeof(std::int64_t);
}

std::size_t ExchangeSizes::stride() const {
  std::size_t longest = 0;
  for (int node = 0; node < topology_.nodes(); ++node) {
    longest = std::max(longest, bytes_of(node));
  }
  return align_up(longest);
}

void ExchangeSizes::write(std::byte* out) const {
  for (const auto& own : unit_.exchange.rows) {
    std::memcpy(out, own.data(), own.size_bytes());
    out += own.size_bytes();
  }
}

void ExchangeSizes::read(const std::byte* in) {
  for (int node = 0; node < topology_.nodes(); ++node) {
    if (!is_exchanged(node)) continue;
    auto& extents = of_node_[static_cast<std::size_t>(node)];
    extents.resize(ranks_of(node).size() * each_);
    std::memcpy(extents.data(), in + static_cast<std::size_t>(node) * stride(), bytes_of(node));
  }
}

/// `rows_of_other_node`: of a node and the position of one of its ranks.
template <class RowsOf>
ExchangeExtents ExchangeSizes::extents_by(RowsOf&& rows_of_other_node) const {
  ExchangeExtents result{unit_.unit.kind, unit_.exchange.row_bytes, {}};
  result.rows.resize(static_cast<std::size_t>(topology_.size()));
  for (int node = 0; node < topology_.nodes(); ++node) {
    std::size_t local = 0;
    for (const int rank : ranks_of(node)) {
      // A reduce-scatter's whole is equal everywhere.
      result.rows[static_cast<std::size_t>(rank)] =
          is_exchanged(node) ? rows_of_other_node(static_cast<std::size_t>(node), local)
                             : unit_.exchange.rows[node == node_ ? local : 0];
      ++local;
    }
  }
  return result;
}

ExchangeExtents ExchangeSizes::extents() const {
  return extents_by([this](std::size_t node, std::size_t local) {
    return std::span<const std::int64_t>(of_node_[node]).subspan(local * each_, each_);
  });
}

ExchangeExtents ExchangeSizes::own_extents() const {
  return extents_by([this](std::size_t, std::size_t) { return std::span(none_); });
}

}  // namespace hora::internal
