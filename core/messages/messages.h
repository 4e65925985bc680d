/// The values that negotiation exchanges, their limits, and their encoding as FlatBuffers; first of
/// all a tensor's signature, on which all ranks must agree before it is transferred. Pure.
#pragma once

#include <hora/error.h>
#include <hora/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "core/base/checked.h"
#include "core/control_block/tensor_id.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// The numbers are part of the wire format: append, never reorder.
enum class OperationKind : std::uint8_t {
  allreduce = 0,
  broadcast = 1,
  barrier = 2,
  allgather = 3,
  alltoall = 4,
  reduce_scatter = 5,
  add_process_set = 6,     ///< shape: its world ranks
  remove_process_set = 7,  ///< shape: {its number}
  join = 8,                ///< of a rank that has joined, in disagreements
};
template <>
inline constexpr OperationKind last_of<OperationKind> = OperationKind::join;
std::string_view name_of(OperationKind kind) noexcept;

/// Operations whose result differs by rank, and is memory of its own (core/plan/plan.h).
constexpr bool is_exchange(OperationKind kind) {
  return kind == OperationKind::allgather || kind == OperationKind::alltoall ||
         kind == OperationKind::reduce_scatter;
}

/// Exchanges to which each rank may bring other extents.
constexpr bool extents_may_differ(OperationKind kind) {
  return is_exchange(kind) && kind != OperationKind::reduce_scatter;
}

/// Operations that a rank which has joined takes part in, with nothing.
constexpr bool allows_joined(OperationKind kind) {
  return kind == OperationKind::allreduce;
}

constexpr bool changes_sets(OperationKind kind) {
  return kind == OperationKind::add_process_set || kind == OperationKind::remove_process_set;
}

/// The first extent in a signature where it may differ by rank.
inline constexpr std::int64_t kAnyExtent = -1;

/// A rank's submission under a name.
struct Signature {
  OperationKind kind = OperationKind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind device = DeviceKind::cpu;
  std::int32_t root = 0;
  Shape shape = {};
  double prescale = 1.0;   ///< of each rank's values, of reductions
  double postscale = 1.0;  ///< of the result
  bool operator==(const Signature&) const = default;

  /// Bytes of the tensor; 0 where there is none, and for exchanges.
  std::size_t bytes() const;
  /// Bytes of all dimensions but the first.
  std::size_t row_bytes() const;
};

/// "allreduce float32 [3, 4] average on cpu", for errors and logs.
std::string to_string(const Signature& signature);

/// False: through host memory: NCCL has no 16-bit integers and no Adasum, and exchanges need one
/// communicator of all ranks (`one_group`: one node, or SetParts::device_spans_nodes).
constexpr bool runs_on_device(const Signature& signature, bool one_group) {
  if (signature.device == DeviceKind::cpu) return false;
  const bool reduces =
      signature.kind == OperationKind::allreduce || signature.kind == OperationKind::reduce_scatter;
  const bool of_16_bits = signature.type == DataType::int16 || signature.type == DataType::uint16;
  if (reduces && (of_16_bits || signature.op == ReduceOp::adasum)) return false;
  return !is_exchange(signature.kind) || one_group;
}

/// A tensor's signature, and its world ranks, ascending; none: all of the sender's subtree.
struct ReportedSignature {
  Signature signature;
  std::vector<int> ranks;
  bool operator==(const ReportedSignature&) const = default;
};

/// All signatures of one named tensor in a subtree.
struct Report {
  std::string name;
  std::vector<ReportedSignature> values;
  bool operator==(const Report&) const = default;
};

/// The numbers are part of the wire format: append, never reorder.
enum class MailKind : std::uint8_t {
  report = 0,    ///< this name needs negotiating
  overdue = 1,   ///< the sender has waited too long for this name
  departed = 2,  ///< the sender has called shutdown
  joined = 3,    ///< the sender has called join, and has nothing in flight
  expiring = 4,  ///< the sender's submission of this name runs out of time soon
};

template <>
inline constexpr MailKind last_of<MailKind> = MailKind::expiring;

/// When a submission runs out of time.
struct Expiry {
  std::chrono::milliseconds limit{0};  ///< from its submission on
  std::chrono::milliseconds left{0};   ///< from now on; at most kMostLeft
  bool is_of_call = false;             ///< the limit is that of its call, not HORA_TIMEOUT
  bool operator==(const Expiry&) const = default;

  static constexpr std::chrono::milliseconds kMostLeft{60'000};
};

/// A rank to its node's leader.
struct Mail {
  MailKind kind = MailKind::report;
  std::string name = {};
  Signature signature = {};
  Location location = {};
  std::optional<Expiry> expiry = {};  ///< of `expiring`
  bool operator==(const Mail&) const = default;
};

/// A leader's view of an overdue tensor, or of one that it has been asked about.
struct Presence {
  std::string name;
  std::vector<int> ready;
  std::vector<int> missing;
  std::vector<std::string> remarks = {};  ///< what is known of the missing ones; or empty
  bool is_answer = false;                 ///< to Decision::asked: it makes no name overdue
  bool operator==(const Presence&) const = default;
};

/// A rank's submission of this name runs out of time soon.
struct Expiring {
  std::string name;
  int rank = 0;
  Expiry expiry;
  bool operator==(const Expiring&) const = default;
};

/// How many rounds of an eager id are complete (NodeSum).
struct Rounds {
  Id id = 0;
  std::uint32_t complete = 0;
  bool operator==(const Rounds&) const = default;
};

/// A leader to all others, of an eager id, in place of Up::ready: its node is ready, and the sum of
/// its ranks' tensors. The round is complete where those of all nodes are, without a decision.
struct NodeSum {
  Id id = 0;
  LastArrival last = {};  ///< sent without its time
  std::vector<std::uint8_t> data = {};
  bool operator==(const NodeSum&) const = default;
};

/// A leader to its parent in the tree of leaders.
struct Up {
  std::vector<Id> ready = {};  ///< ids that the sender's whole subtree is ready for
  std::vector<Report> reports = {};
  std::vector<Presence> presence = {};
  std::vector<int> departed = {};
  std::vector<int> joined = {};        ///< read first: reports may count them as present
  std::vector<LastArrival> last = {};  ///< for each of `ready`, sent without its time; or empty
  std::vector<Expiring> expiring = {};
  /// Those of `ready` to whose last run some rank brought other extents, or lacks some of them.
  std::vector<Id> resized = {};
  /// Ids whose names some rank reports, as it brings another signature, or that wait for ranks that
  /// have joined: to be given up, so that all ranks report.
  std::vector<Id> disputed = {};
  /// Where there is `departed` or `disputed`: to be read once these rounds are complete.
  std::vector<Rounds> after = {};
  bool operator==(const Up&) const = default;

  bool empty() const {
    return ready.empty() && reports.empty() && presence.empty() && departed.empty() &&
           joined.empty() && expiring.empty() && disputed.empty();
  }
};

/// A name that gets an id and runs at once.
struct Assigned {
  std::string name;
  Id id = 0;
  /// By local rank of the reading node; each node's leader fills it in.
  std::vector<Location> locations;
  /// Set where a rank has joined: it may know of the name from here alone.
  std::optional<Signature> signature = std::nullopt;
  bool operator==(const Assigned&) const = default;
};

/// A name on which ranks disagree.
struct Failed {
  std::string name;
  std::string text;
  bool operator==(const Failed&) const = default;
};

/// One batch, the same on every rank. Read in the order of the fields.
struct Decision {
  std::vector<Id> retired = {};
  std::vector<Failed> failed = {};
  std::vector<Assigned> assigned = {};
  std::vector<Id> run = {};
  std::vector<Id> resized = {};    ///< of `run`: the ranks are to tell one another their extents
  std::vector<int> departed = {};  ///< world ranks that have called shutdown
  bool finished = false;           ///< every rank has
  bool all_joined = false;         ///< every rank has called join
  int last_joined = 0;             ///< the last one of them, then
  std::vector<std::string> asked = {};  ///< overdue and expiring names: leaders say who lacks them
  std::vector<Id> eager = {};           ///< of `run`: they are from their next round on (NodeSum)
  std::vector<Rounds> after = {};       ///< as Up::after, of `retired` and `departed`
  bool operator==(const Decision&) const = default;

  /// True when there is nothing but ids to run.
  bool only_runs() const {
    return retired.empty() && failed.empty() && assigned.empty() && resized.empty() &&
           departed.empty() && !finished && !all_joined && asked.empty() && eager.empty();
  }
  bool empty() const { return run.empty() && only_runs(); }
};

/// The sender's node ends, and with it the job: to its parent and children, which pass it on.
struct JobEnd {
  ErrorCode code = ErrorCode::transport;
  int rank = -1;  ///< Error::rank
  std::string text;
  std::string tensor;
  bool operator==(const JobEnd&) const = default;
};

using Message = std::variant<Mail, Up, Decision, JobEnd, NodeSum>;

std::vector<std::byte> encode(const Message& message);

/// Limits of one process set. Every message that comes from a peer goes through decode() with
/// these; after that the following holds, and is not checked again:
/// - the slot of every id is below `id_capacity`;
/// - every rank, and the root of every broadcast, is one of `ranks`;
/// - every signature is one that a user can submit: its shape can be counted, in bytes as in rows,
///   and its first extent is kAnyExtent where it may differ by rank, and only there;
/// - either each ready id has its last rank, or none; either each missing rank has a remark, or
///   none;
/// - a decision gives no name two ids, and no slot to two names, and says for every name it assigns
///   where `locations` local ranks keep it (but not whether anything is there: NodeMemory does).
struct MessageLimits {
  int id_capacity = 0;
  std::vector<int> ranks;     ///< world ranks, ascending
  std::size_t locations = 0;  ///< 0 between nodes; in a node's log, its ranks
};

MessageLimits message_limits(const Topology& topology, int id_capacity, std::size_t locations);

/// The message, or why it is not valid: offsets, lengths, enumerators and, with limits, numbers.
tl::expected<Message, std::string> decode(std::span<const std::byte> bytes,
                                          const MessageLimits* limits = nullptr);

}  // namespace hora::internal
