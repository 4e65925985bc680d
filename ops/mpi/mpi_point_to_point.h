/// Messages over MPI: between the members of a cross group, and of negotiation.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cross/point_to_point.h"
#include "ops/mpi/communicator.h"

namespace hora::internal {

/// The longest message for `setting`, HORA_MESSAGE_SIZE. What Open MPI's TCP transport sends at
/// once, without an announcement that the receiver must have answered, is shorter than 64 KiB
/// (btl_tcp_eager_limit); MPI's counts are int.
constexpr std::size_t message_limit(std::size_t setting, bool over_sockets) {
  if (setting > 0) return setting;
  return over_sockets ? std::size_t{60} << 10 : std::size_t{1} << 30;
}

/// Every request is a slot that is reused: no allocation once as many are known as are ever open at
/// once. A failing test() costs one round of MPI's progress, so a caller with many requests open
/// tests the one it needs next. Both ends must name the same length; any other is an
/// Error(transport). Destroying it abandons what is under way, for before an abort.
/// Thread rule: one thread at a time.
class MpiPointToPoint : public PointToPoint {
 public:
  /// `ranks[i]`: member i's rank in `communicator`, which must outlive this and carry no other
  /// messages. `part_bytes`: longer messages are sent in parts; equal on all members, at most
  /// 2^31 - 1.
  MpiPointToPoint(const Communicator& communicator, int index, std::vector<int> ranks,
                  std::size_t part_bytes);
  MpiPointToPoint(const MpiPointToPoint&) = delete;
  MpiPointToPoint& operator=(const MpiPointToPoint&) = delete;
  ~MpiPointToPoint() override;

  Request send(int to, int tag, std::span<const std::byte> bytes) override;
  Request receive(int from, int tag, std::span<std::byte> bytes) override;
  bool test(Request request) override;
  bool cancel(Request receive) override;

 private:
  struct RequestSlot {
    std::vector<MPI_Request> parts;
    std::size_t next = 0;   // parts[0, next) are complete
    std::size_t bytes = 0;  // of the whole message
    int peer = -1;          // rank in the communicator
    bool is_receive = false;
    bool is_cancelled = false;
  };

  Request take_slot(int member, std::size_t bytes, bool is_receive);
  std::size_t part_length(const RequestSlot& slot, std::size_t part) const;
  void check_length(const RequestSlot& slot, const MPI_Status& status) const;

  const Communicator& communicator_;
  std::vector<int> ranks_;
  std::size_t part_bytes_;
  std::vector<RequestSlot> slots_;
  std::vector<Request> free_;
};

/// Each message is one MPI message of at most 4032 bytes (head: its length, then its first bytes),
/// and for longer ones a second that carries the rest.
///
/// One receive for heads, from any source, is always posted. Asking it costs one round of MPI's
/// progress, whatever the number of nodes, where MPI_Iprobe from any source looks at every rank.
/// Thread rule: one thread at a time.
class MpiTreeLink : public TreeLink {
 public:
  static constexpr std::size_t kMaximumBytes = std::size_t{16} << 20;

  /// `leaders[node]`: the leader's rank in `communicator`, which must outlive this link and carry
  /// no other messages.
  MpiTreeLink(const Communicator& communicator, std::vector<int> leaders, int node);
  MpiTreeLink(const MpiTreeLink&) = delete;
  MpiTreeLink& operator=(const MpiTreeLink&) = delete;
  ~MpiTreeLink() override;

  void send(int node, std::span<const std::byte> message) override;
  std::optional<Received> receive() override;
  bool flushed() override;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;  // head, then rest
    MPI_Request head = MPI_REQUEST_NULL;
    MPI_Request rest = MPI_REQUEST_NULL;
  };
  struct Arriving {
    Received message;
    MPI_Request rest = MPI_REQUEST_NULL;
  };

  std::size_t take_free_slot();
  bool sent(Outgoing& outgoing);
  void take_heads();
  Arriving take_head(int source, std::size_t bytes);

  const Communicator& communicator_;
  std::vector<int> leaders_;
  std::vector<int> node_of_rank_;  // -1: no leader
  int node_;

  // A deque, because MPI knows the addresses of the buffers and of nothing else; slots are reused.
  std::deque<Outgoing> outgoing_;
  std::vector<std::size_t> in_flight_;  // indices in outgoing_
  std::vector<std::size_t> free_;

  std::vector<std::byte> head_;
  MPI_Request head_request_ = MPI_REQUEST_NULL;  // persistent
  std::deque<Arriving> arriving_;                // in order of their heads
};

}  // namespace hora::internal
