/// The one place where results of MPI calls are checked; owned communicators, how they are made,
/// start-up's collectives on them, and the startup barrier, by which ranks that wait for one
/// another report which are missing, and time out; and messages between the members of a cross
/// group, and of negotiation.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cross/point_to_point.h"

namespace hora::internal {

/// Failed ranks of MPI_COMM_WORLD, ascending, where `result`, returned by an MPI call, says that a
/// process has failed; else empty, as with an MPI without ULFM. Local, calls no error handler of
/// the application's.
std::vector<int> failed_ranks(int result);

inline constexpr int kNoPeer = -1;

/// Throws Error(transport): "<call> to/from rank <peer> failed: <MPI's text>", and which ranks have
/// ended where MPI knows.
[[noreturn]] void throw_mpi_error(int result, std::string_view call, int peer);

/// `call` as in "MPI_Isend to"; `peer` is the rank in the communicator that it went to, if any. The
/// text is put together only where the call has failed.
inline void mpi_check(int result, std::string_view call, int peer = kNoPeer) {
  if (result != MPI_SUCCESS) [[unlikely]] {
    throw_mpi_error(result, call, peer);
  }
}

/// MPI's counts are int. Throws Error(transport) naming `what` where `bytes` is more than 2^31 - 1.
int mpi_count(std::size_t bytes, std::string_view what);

/// MPI has ended in this process, or cannot say.
bool mpi_is_finalized() noexcept;

/// How long ranks wait for one another; 0: without limit, and without a warning.
struct Patience {
  std::chrono::milliseconds warning{0};  ///< `warn` is called whenever as much time has passed
  std::chrono::milliseconds timeout{0};  ///< then it is an error
  std::function<void(const std::string&)> warn = {};  ///< takes a sentence for the log
};

/// Returns once each of `ranks` (ascending ranks of `comm`, this one among them) has called it with
/// the same list: blocking calls of MPI that follow then wait for no other. By tags 32741 and
/// 32742, through the list's lowest. Lists that contradict: Error(mismatch) with both. After the
/// timeout: Error(transport) naming those that have not called `what`, and the job ends with this
/// process (abandon_job()). Ranks in texts are MPI_COMM_WORLD's. Thread rule: one thread at a time
/// in a process.
void startup_barrier(MPI_Comm comm, const std::vector<int>& ranks, const std::string& what,
                     const Patience& patience);

/// Move-only owner of a communicator whose errors are returned. Every member but the accessors is
/// collective, blocks, and throws Error(transport); where ranks may be missing, a startup barrier
/// comes first, with `patience`. The destructor frees it unless MPI is finalised, and does not wait
/// (MPI 4.0, 7.4.3). Thread rule: one thread at a time.
class Communicator {
 public:
  Communicator() noexcept = default;
  Communicator(Communicator&& other) noexcept { *this = std::move(other); }
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Communicator();

  /// All ranks, with messages of its own.
  static Communicator world(const Patience& patience = {}) { return of(MPI_COMM_WORLD, patience); }
  /// A duplicate of the application's. Throws Error(invalid_argument) for one that is null or an
  /// intercommunicator.
  static Communicator of(MPI_Comm application, const Patience& patience = {});
  /// These ranks of MPI_COMM_WORLD, this one among them: collective over them alone. Throws
  /// Error(invalid_argument) where they are not ascending, do not exist or leave this one out.
  static Communicator of(const std::vector<int>& ranks, const Patience& patience = {});
  /// The ranks that MPI says can share memory with this one, in rank order.
  Communicator split_by_shared_memory() const;

  MPI_Comm get() const noexcept { return comm_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

 private:
  friend class PendingDuplicate;
  explicit Communicator(MPI_Comm comm);  // takes ownership

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
};

/// A duplicate in the making (MPI_Comm_idup): begun on every rank of the original in one order, one
/// at a time, and never waited for. Destroyed before it is complete it leaks what MPI writes to,
/// for before an abort. Thread rule: one thread at a time.
class PendingDuplicate {
 public:
  explicit PendingDuplicate(const Communicator& original);
  PendingDuplicate(const PendingDuplicate&) = delete;
  PendingDuplicate& operator=(const PendingDuplicate&) = delete;
  ~PendingDuplicate();

  /// Makes progress without blocking; returns the duplicate, once. Throws Error(transport).
  std::optional<Communicator> poll();

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::unique_ptr<MPI_Comm> duplicate_;  ///< MPI writes to it until the request is complete
};

/// Start-up's collectives. A startup barrier precedes each blocking call, so that missing
/// ranks are named and the wait is bounded. Thread rule: one thread at a time.
class MpiBootstrap final : public Bootstrap {
 public:
  /// `communicator` carries no other messages meanwhile.
  explicit MpiBootstrap(Communicator communicator, Patience patience = {});

  const Communicator& communicator() const noexcept { return communicator_; }

  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> bytes) override;
  std::unique_ptr<Bootstrap> of_host() override;

 private:
  void meet(const char* call) const;

  Communicator communicator_;
  Patience patience_;
};

/// The longest message for `setting`, HORA_MESSAGE_SIZE. What Open MPI's TCP transport sends at
/// once, without an announcement that the receiver must have answered, is shorter than 64 KiB
/// (btl_tcp_eager_limit); MPI's counts are int.
constexpr std::size_t message_limit(std::size_t setting, bool over_sockets) {
  if (setting > 0) return setting;
  return over_sockets ? std::size_t{60} << 10 : std::size_t{1} << 30;
}

/// Requests are slots that are reused without allocation. A failing test() costs a round of MPI's
/// progress, so test the one that is needed next. Both ends must name the same length, else
/// Error(transport). Destroying it abandons what is under way. Thread rule: one thread at a time.
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

  /// `call`: MPI_Isend or MPI_Irecv; `name` as in mpi_check().
  template <class Call, class Byte>
  Request start(Call call, std::string_view name, int member, int tag, std::span<Byte> bytes,
                bool is_receive);
  std::size_t part_length(const RequestSlot& slot, std::size_t part) const;
  void check_length(const RequestSlot& slot, const MPI_Status& status) const;

  const Communicator& communicator_;
  std::vector<int> ranks_;
  std::size_t part_bytes_;
  std::vector<RequestSlot> slots_;
  std::vector<Request> free_;
};

/// Each message is one MPI message of at most 4032 bytes (head: its length, then its first bytes),
/// and for longer ones a second with the rest. One receive for heads, from any source, is always
/// posted, at one round of MPI's progress whatever the number of nodes. Thread rule: one thread at
/// a time.
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

  bool sent(Outgoing& outgoing);
  void take_heads();
  Arriving take_head(int source, std::size_t bytes);

  const Communicator& communicator_;
  std::vector<int> leaders_;
  std::vector<int> node_of_rank_;  // -1: no leader
  int node_;

  std::list<Outgoing> in_flight_, free_;  // lists, because MPI knows the addresses of the buffers

  std::vector<std::byte> head_;
  MPI_Request head_request_ = MPI_REQUEST_NULL;  // persistent
  std::deque<Arriving> arriving_;                // in order of their heads
};

}  // namespace hora::internal
