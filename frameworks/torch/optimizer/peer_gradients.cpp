#include "frameworks/torch/optimizer/peer_gradients.h"

#include <hora/process_set.h>

#include "core/api/internals.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

PeerGradients::PeerGradients(const Peers& peers, const GradientBuckets& buckets)
    : peers_(peers), buckets_(buckets), members_(ranks_of(peers.context, peers.set)) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const auto begins = peer_addresses(peers.context, peers.set, buckets.name(b) + ".places",
                                       buckets.data(b), memory_bytes(buckets.layout(b)));
    begins_.emplace_back(begins.begin(), begins.end());
  }
}

std::vector<const std::byte*> PeerGradients::find(const GradientPiece& piece) const {
  const BucketLayout& layout = buckets_.layout(piece.bucket);
  std::vector<const std::byte*> found;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::byte* const bucket = begins_[piece.bucket][rank];
    Location location = kNowhere;
    if (piece.place < layout.apart) {
      location = reinterpret_cast<const Location*>(bucket + locations_offset(layout))[piece.place];
    }
    if (location == kNowhere) {
      found.push_back(bucket + layout.places[piece.place].offset + piece.begin);
    } else {
      location.offset += piece.begin;
      found.push_back(peer_address(peers_.context, members_[rank], location, piece.bytes));
    }
  }
  return found;
}

}  // namespace hora::internal
