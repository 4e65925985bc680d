#include "ops/hierarchy/exchange_sizes.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace hora::internal {

ExchangeSizes::ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node)
    : unit_(unit),
      topology_(topology),
      node_(node),
      each_(extents_of_rank(unit.unit.kind, topology.size())),
      last_(unit.exchange.last ? unit.exchange.last : std::make_shared<LastExtents>()) {
  if (come_from_others() && unit.exchange.repeats && !last_->known()) {
    throw Error(ErrorCode::transport,
                "exchange: it is to repeat extents that this rank does not know. Do all ranks run "
                "the same build of hora?");
  }
}

const std::vector<int>& ExchangeSizes::ranks_of(int node) const {
  return topology_.ranks_of_node[static_cast<std::size_t>(node)];
}

bool ExchangeSizes::come_from_others() const {
  return extents_may_differ(unit_.unit.kind) && topology_.nodes() > 1;
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
  const auto all = last_->renew(each_, static_cast<std::size_t>(topology_.size()));
  const std::size_t each_bytes = each_ * sizeof(std::int64_t);
  for (int node = 0; node < topology_.nodes(); ++node) {
    const std::byte* from = in + static_cast<std::size_t>(node) * stride();
    for (std::size_t local = 0; local < ranks_of(node).size(); ++local) {
      const auto place = static_cast<std::size_t>(ranks_of(node)[local]);
      const std::byte* const extents =
          node == node_ ? std::as_bytes(unit_.exchange.rows[local]).data() : from;
      std::memcpy(all.data() + place * each_, extents, each_bytes);
      from += each_bytes;
    }
  }
}

ExchangeExtents ExchangeSizes::extents() const {
  ExchangeExtents result{unit_.unit.kind, unit_.exchange.row_bytes, {}};
  result.rows.resize(static_cast<std::size_t>(topology_.size()));
  for (int node = 0; node < topology_.nodes(); ++node) {
    std::size_t local = 0;
    for (const int rank : ranks_of(node)) {
      auto& rows = result.rows[static_cast<std::size_t>(rank)];
      if (node != node_ && come_from_others()) {
        rows = last_->of(rank);
      } else {
        // A reduce-scatter's whole is equal everywhere.
        rows = unit_.exchange.rows[node == node_ ? local : 0];
      }
      ++local;
    }
  }
  return result;
}

}  // namespace hora::internal
