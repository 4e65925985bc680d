/// Messages between the members of a cross group over MPI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <vector>

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
  bool withdraw(Request receive) override;

 private:
  struct RequestSlot {
    std::vector<MPI_Request> parts;
    std::size_t next = 0;   // parts[0, next) are complete
    std::size_t bytes = 0;  // of the whole message
    int peer = -1;          // rank in the communicator
    bool is_receive = false;
    bool is_withdrawn = false;
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

}  // namespace hora::internal
