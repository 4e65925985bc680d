/// The cross group over messages: which algorithm runs.
#pragma once

#include <hora/settings.h>
#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/cross/cross_work.h"
#include "ops/cross/point_to_point.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// Equal on all members.
struct CrossOptions {
  CrossAlgorithm algorithm = CrossAlgorithm::automatic;  ///< automatic is direct
  std::size_t small_message = std::size_t{4} << 10;      ///< up to here: dissemination
};

CrossOptions cross_options(const Settings& settings);

/// The algorithm of what is longer than a small message. Throws Error(invalid_argument) for a
/// number that is no enumerator.
const AllreduceAlgorithm& allreduce_algorithm(CrossAlgorithm setting);

/// Every algorithm sums each element in member order and rounds it once: all members get the same
/// bits, in every run, however long the staging is. At most
/// CrossResources::kWindow sequence numbers may lie between the oldest operation under way and the
/// newest. Outlives the work that it started. Thread rule: as CrossGroup.
class MessageCrossGroup : public CrossGroup {
 public:
  /// Staging lies in `space`, whose memory `link` takes. Both outlive it.
  explicit MessageCrossGroup(PointToPoint& link, const CrossOptions& options = {},
                             StagingSpace& space = host_space())
      : resources_(link, space),
        small_message_(options.small_message),
        algorithm_(allreduce_algorithm(options.algorithm)) {}

  /// Takes all memory now that `operations` at once of up to `staging_bytes` work in.
  void reserve(std::size_t operations, std::size_t staging_bytes);

  /// Throws Error(invalid_argument) where the length is no multiple of the element size.
  Completion allreduce(const Reduction& reduction, std::span<std::byte> staging,
                       std::uint64_t sequence) override;
  /// Throws Error(invalid_argument) as AdasumAllreduce does, and for GPU memory.
  Completion adasum(DataType type, std::span<std::byte> staging, std::vector<Range> tensors,
                    std::uint64_t sequence) override;
  /// Throws Error(invalid_argument) for a root that is no member.
  Completion broadcast(std::span<std::byte> staging, int root, std::uint64_t sequence) override;
  /// Throws Error(invalid_argument) where there is not one send and one receive for each member.
  Completion exchange(std::span<const std::span<const std::byte>> sends,
                      std::span<const std::span<std::byte>> receives,
                      std::uint64_t sequence) override;

 private:
  CrossResources resources_;
  std::size_t small_message_;
  const AllreduceAlgorithm& algorithm_;
};

}  // namespace hora::internal
