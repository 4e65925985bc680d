#include "ops/hierarchy/exchange_sizes.h"

#include <algorithm>
#include <cstring>

namespace hora {

ExchangeSizes::ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node)
    : unit_(unit),
      topology_(topology),
      node_(node),
      each_(extents_of_rank(unit.unit.kind, topology.size())),
      of_node_(topology.ranks_of_node.size()) {}

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

ExchangeExtents ExchangeSizes::extents() const {
  ExchangeExtents result{unit_.unit.kind, unit_.exchange.row_bytes, {}};
  result.rows.resize(static_cast<std::size_t>(topology_.size()));
  for (int node = 0; node < topology_.nodes(); ++node) {
    std::size_t local = 0;
    for (const int rank : ranks_of(node)) {
      auto& rows = result.rows[static_cast<std::size_t>(rank)];
      if (is_exchanged(node)) {
        const std::span<const std::int64_t> all = of_node_[static_cast<std::size_t>(node)];
        rows = all.subspan(local * each_, each_);
      } else {
        // A reduce-scatter's whole is equal everywhere.
        rows = unit_.exchange.rows[node == node_ ? local : 0];
      }
      ++local;
    }
  }
  return result;
}

}  // namespace hora
