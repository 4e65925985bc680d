/// The extents that the ranks of a set bring to an exchange that is run again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hora::internal {

/// Those of a name's last run, if they are known. Thread rule: by turns; the thread that makes
/// progress while the name is under way, and the one that submits it afterwards.
class LastExtents {
 public:
  /// More of them, 32 KiB, are not kept beyond the run.
  static constexpr std::size_t kMostKept = 4096;

  bool known() const { return each_ > 0; }
  /// Known, and these are what the rank with this place in the set has brought.
  bool are(int place, std::span<const std::int64_t> extents) const {
    return known() && std::ranges::equal(of(place), extents);
  }
  /// Of a rank, while known.
  std::span<const std::int64_t> of(int place) const {
    return std::span(all_).subspan(static_cast<std::size_t>(place) * each_, each_);
  }
  /// For all ranks, `each` apiece, in the order of their places: to be written whole.
  std::span<std::int64_t> renew(std::size_t each, std::size_t ranks) {
    each_ = each;
    all_.resize(each * ranks);
    return all_;
  }
  /// The run needs them no more.
  void end_run() {
    if (all_.size() <= kMostKept) return;
    each_ = 0;
    all_ = {};
  }

 private:
  std::size_t each_ = 0;
  std::vector<std::int64_t> all_;
};

}  // namespace hora::internal
