/// Which bytes of a set of segments are in use. Pure.
#pragma once

#include <hora/export.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace hora::internal {

/// It never touches the memory. Best fit with immediate coalescing; every block is a multiple of 64
/// bytes. Thread rule: one thread at a time.
class HORA_EXPORT BlockAllocator {
 public:
  struct SegmentBlock {
    std::uint32_t segment = 0;
    std::uint64_t offset = 0;
    bool operator==(const SegmentBlock&) const = default;
  };

  /// Adds [begin, begin + bytes) of a new segment, the next one in number, as free memory.
  void add_segment(std::uint64_t begin, std::uint64_t bytes);
  /// Nothing where no free block is long enough.
  std::optional<SegmentBlock> allocate(std::size_t bytes);
  /// `block` as allocate() gave it.
  void release(SegmentBlock block);
  std::size_t blocks_in_use() const { return used_.size(); }

 private:
  using Place = std::pair<std::uint32_t, std::uint64_t>;  ///< segment, offset
  void insert_free(Place place, std::uint64_t bytes);
  void erase_free(std::map<Place, std::uint64_t>::iterator block);

  std::uint32_t segments_ = 0;
  std::map<Place, std::uint64_t> free_;                ///< place -> bytes
  std::set<std::pair<std::uint64_t, Place>> by_size_;  ///< the same, smallest first
  std::map<Place, std::uint64_t> used_;
};

}  // namespace hora::internal
