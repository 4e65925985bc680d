/// What the algorithms of the cross group have in common: messages by phase, and memory to work in.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/cross/point_to_point.h"
#include "ops/cross/staging_space.h"
#include "ops/hierarchy/groups.h"

namespace hora {

/// The memory of one operation under way; reused, so that the steady state allocates nothing in it.
struct Workspace {
  explicit Workspace(StagingSpace& space) : buffer(space) {}
  WorkBuffer buffer;
  RequestQueue sends, receives, gather_sends, gather_receives;
  std::vector<const std::byte*> inputs;
};

/// What the operations of one cross group share.
///
/// Tags. A message's tag is made of (sequence modulo kWindow) and the phase of its algorithm, at
/// most 32767, MPI's guaranteed bound. Within one operation a pair of members exchanges, in one
/// direction and phase, either one message, or several whose sends and receives are both started in
/// one order. Two operations with equal tags are kWindow apart, and no member starts the later one
/// before the earlier one is complete on that member (begin() sees to it). So on every member all
/// sends and all receives of the earlier one are started before any of the later one, and because
/// messages of one pair and tag match in the order in which they were started, none is taken for
/// another, however far ahead the other member is.
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

}  // namespace hora
