#include "ops/hierarchy/broadcast_in_node.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/local/kernels.h"

namespace hora {

BroadcastInNode::BroadcastInNode(const BoundUnit& unit, BroadcastProgress progress,
                                 LocalGroup& group, int local_rank)
    : unit_(unit),
      progress_(progress),
      group_(group),
      is_root_(local_rank == unit.root_local),
      is_followed_(is_followed(unit.unit)) {}

bool BroadcastInNode::poll() {
  if (is_followed_ && is_root_) publish();
  const std::size_t readable = is_followed_ && !is_root_
                                   ? progress_.readable(unit_.root_local, unit_.number)
                                   : std::numeric_limits<std::size_t>::max();
  fetch(readable);
  return readable >= unit_.unit.bytes && group_.run(unit_).poll();
}

void BroadcastInNode::publish() {
  for (const BoundUnit::Publish& part : unit_.publishes) {
    const Range range = unit_.unit.tensors[part.position].range;
    std::byte* const block = unit_.tensor(part.position, unit_.root_local);
    for (std::size_t done = 0; done < range.bytes; done += BroadcastProgress::kStep) {
      progress_.leave(unit_.number, range.begin + done);
      const std::size_t step = std::min(BroadcastProgress::kStep, range.bytes - done);
      publish_copy(block + done, part.source + done, step);
    }
  }
  progress_.leave_all(unit_.number);
}

void BroadcastInNode::fetch(std::size_t readable) {
  for (const BoundUnit::Fetch& part : unit_.fetches) {
    const Range range = unit_.unit.tensors[part.position].range;
    const std::size_t begin = std::max(fetched_, range.begin);
    const std::size_t end = std::min(readable, range.begin + range.bytes);
    if (begin >= end) continue;
    const std::byte* const block = unit_.tensor(part.position, unit_.root_local);
    const std::size_t offset = begin - range.begin;
    std::memcpy(part.target + offset, block + offset, end - begin);
  }
  fetched_ = std::max(fetched_, readable);
}

}  // namespace hora
