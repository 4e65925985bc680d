/// The cross group over messages: which algorithm runs; and the algorithms' common parts: messages
/// by phase, and memory to work in, how it is summed there. Each algorithm is a class of its own
/// source, where its comment says steps, bytes and messages a node.
#pragma once

#include <hora/settings.h>
#include <hora/types.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/plan/plan.h"
#include "ops/cross/point_to_point.h"
#include "ops/hierarchy/groups.h"

namespace hora::internal {

/// The host's memory, or a GPU's. Thread rule: the thread that holds the engine's lock.
class StagingSpace {
 public:
  virtual ~StagingSpace() = default;
  /// 64-byte aligned, not initialised. May wait for all that the device does: call it when no
  /// operation is under way. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Starts output = the inputs taken together in their order, with the bits of ops/local's
  /// reduce(). The memory, not the list, is in use until completion; then the result is ready to be
  /// read by MPI and the device's streams.
  virtual Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                            std::byte* output, std::size_t count) = 0;
  /// Starts output = the input's values in another floating-point type, with the bits of
  /// ops/local's convert(). Completes as reduce() does. The two do not overlap.
  virtual Completion convert(DataType source, const std::byte* input, DataType target,
                             std::byte* output, std::size_t count) = 0;
};

/// The host's: everything is complete when a call returns. One for all: it has no state. Thread
/// rule: any thread.
StagingSpace& host_space() noexcept;

/// 64-byte aligned memory of a staging space, which grows and is not initialised.
class WorkBuffer {
 public:
  /// `space` outlives it.
  explicit WorkBuffer(StagingSpace& space) : space_(space), data_(nullptr, Free{space}) {}
  /// At least this many bytes; what was in it before is lost.
  std::byte* reserve(std::size_t bytes);

 private:
  struct Free {
    StagingSpace& space;
    void operator()(std::byte* data) const noexcept { space.release(data); }
  };
  StagingSpace& space_;
  std::unique_ptr<std::byte, Free> data_;
  std::size_t capacity_ = 0;
};

/// The memory of one operation under way; reused, so that the steady state allocates nothing in it.
struct Workspace {
  explicit Workspace(StagingSpace& space) : buffer(space) {}
  WorkBuffer buffer;
  RequestQueue sends, receives, gather_sends, gather_receives;
  std::vector<const std::byte*> inputs;
};

/// Shared by the operations of one cross group. A message's tag is (sequence modulo kWindow) and
/// the phase of its algorithm, at most 32767, MPI's guaranteed bound. Within an operation a pair
/// exchanges, in one direction and phase, messages that both start in one order; operations with
/// equal tags are kWindow apart, and begin() starts none before the earlier one is complete here.
/// So no message is taken for another, however far ahead the other member is.
class CrossResources {
 public:
  static constexpr std::uint64_t kWindow = 4096;
  static constexpr int kPhases = 8;

  /// Both outlive it.
  CrossResources(PointToPoint& link, StagingSpace& space) : link_(link), space_(space) {}

  PointToPoint& link() noexcept { return link_; }
  StagingSpace& space() noexcept { return space_; }
  /// Workspaces for `operations` at once, with `bytes` of memory each.
  void reserve(std::size_t operations, std::size_t bytes);
  /// Throws Error(invalid_use) where operation `sequence - kWindow` (or a multiple) is under way.
  Workspace& begin(std::uint64_t sequence);
  void end(std::uint64_t sequence, Workspace& workspace);

 private:
  Workspace& take_workspace();

  PointToPoint& link_;
  StagingSpace& space_;
  std::bitset<kWindow> under_way_;
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  std::vector<Workspace*> free_;
};

/// An operation of the cross group under way. Dropped before it is complete it leaves messages
/// under way and keeps its workspace: only before the job is aborted.
class CrossWork : public PendingWork {
 public:
  CrossWork(CrossResources& resources, std::uint64_t sequence);
  MemoryUse cancel() final;

 protected:
  Workspace& workspace() noexcept { return *workspace_; }
  PointToPoint& link() noexcept { return resources_.link(); }
  StagingSpace& space() noexcept { return resources_.space(); }
  /// Empty spans are not sent: both ends know the lengths.
  void send(RequestQueue& queue, int to, int phase, std::span<const std::byte> bytes);
  void receive(RequestQueue& queue, int from, int phase, std::span<std::byte> bytes);
  /// Releases what the operation used. For poll's last line: always true.
  bool finish();

 private:
  int tag(int phase) const;

  CrossResources& resources_;
  std::uint64_t sequence_;
  Workspace* workspace_;
};

/// A way to add up the members' stagings: of at least 2 members, not empty, whole elements.
struct AllreduceAlgorithm {
  std::string_view name;
  /// Memory that one operation works in, beside its staging; of any type.
  std::size_t (*work_bytes)(std::size_t staging_bytes, int members);
  Completion (*start)(CrossResources& resources, const Reduction& reduction,
                      std::span<std::byte> staging, std::uint64_t sequence);
};

// allreduce.cpp
extern const AllreduceAlgorithm kDirectAllreduce;
extern const AllreduceAlgorithm kDisseminationAllreduce;
extern const AllreduceAlgorithm kRingAllreduce;

/// Adasum of the members' stagings, of a floating-point type, tensor by tensor
/// (ops/local/kernels.h). `tensors`: the bytes of each in the staging, equal on all members.
Completion start_adasum(CrossResources& resources, DataType type, std::span<std::byte> staging,
                        std::vector<Range> tensors, std::uint64_t sequence);

/// Equal on all members.
struct CrossOptions {
  CrossAlgorithm algorithm = CrossAlgorithm::automatic;  ///< automatic is direct
  std::size_t small_message = std::size_t{4} << 10;      ///< up to here: dissemination
};

CrossOptions cross_options(const Settings& settings);

/// The algorithm of what is longer than a small message. Throws Error(invalid_argument) for a
/// number that is no enumerator.
const AllreduceAlgorithm& allreduce_algorithm(CrossAlgorithm setting);

/// Every algorithm sums each element in member order and rounds it once: the same bits on all
/// members, in every run. At most CrossResources::kWindow sequence numbers lie between the oldest
/// operation and the newest. Outlives its work. Thread rule: as CrossGroup.
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
  Completion adasum(DataType type, std::span<std::byte> staging, std::vector<Range> tensors,
                    std::uint64_t sequence) override;
  Completion broadcast(std::span<std::byte> staging, int root, std::uint64_t sequence) override;
  Completion exchange(std::span<const std::span<const std::byte>> sends,
                      std::span<const std::span<std::byte>> receives,
                      std::uint64_t sequence) override;

 private:
  CrossResources resources_;
  std::size_t small_message_;
  const AllreduceAlgorithm& algorithm_;
};

}  // namespace hora::internal
