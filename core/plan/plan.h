/// From a batch of decided tensors to units of work: which tensors travel together, cut into chunks
/// and slices; and a unit together with the memory of its tensors on every rank of this rank's
/// node. Pure: the same on every rank.
///
/// Words: a *unit* is a run of decided tensors of one kind, type and operation, laid end to end,
/// each padded to 64 bytes ("unit bytes"). A *chunk* is a run of a unit's bytes, the step of the
/// pipeline. A *slice* is one local rank's part of a chunk; all slices of a chunk but the last ones
/// have equal length, a multiple of 64 bytes.
///
/// An exchange (allgather, alltoall, reduce-scatter): which bytes go where. A *row* is one step of
/// the first dimension. What the ranks of node A give to those of node B is a *layout*:
/// bytes in an order that both nodes know, so that any range of them can travel without a
/// description. It consists of *transfers*, each from one place to one place. Nodes, ranks and
/// local ranks are those of the set; the ranks of a node need not follow one another.
#pragma once

#include <hora/error.h>
#include <hora/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/control_block/tensor_id.h"
#include "core/messages/messages.h"
#include "core/negotiation/topology.h"

namespace hora::internal {

/// Elements of `type`, taken together in node order; of floating point then multiplied by `scale`.
struct Reduction {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double scale = 1.0;
};

/// In a job of one node a tensor of this size gains nothing by travelling with others.
inline constexpr std::size_t kAloneBytes = std::size_t{1} << 20;

/// In one node, a broadcast of this size, below kAloneBytes, is read while its root copies it.
inline constexpr std::size_t kFollowedBytes = std::size_t{1} << 17;
constexpr bool is_followed(std::size_t bytes) {
  return bytes >= kFollowedBytes && bytes < kAloneBytes;
}

/// Bytes [begin, begin + bytes) of a unit, a staging block or a tensor.
struct Range {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::size_t end() const { return begin + bytes; }
  bool operator==(const Range&) const = default;
};

/// The upper bound of a chunk between `nodes` nodes: `setting` (HORA_CHUNK_SIZE), or where that is
/// 0 32 KiB a node (a message costs about 2 us, as 100 Gbit/s do for that), from 1 to 32 MiB.
std::size_t chunk_limit(std::size_t setting, int nodes);
/// The same of broadcasts: chosen 512 KiB, so that nodes receive and send at once.
std::size_t broadcast_chunk_limit(std::size_t setting);
/// The same of units on devices: chosen 2 MiB for each of `slices` ranks of a node (each slice is a
/// launch of NCCL, two copies and a message), at most 32 MiB.
std::size_t device_chunk_limit(std::size_t setting, int nodes, int slices);

struct PlanLimits {
  std::size_t fusion_bytes = 0;  ///< a unit of several tensors is at most this long
  std::size_t alone_bytes = 0;   ///< a tensor of this size is a unit of its own; 0: none is
  std::size_t chunk_bytes = 0;   ///< upper bound of a chunk; 0: a unit is one chunk
};

/// One tensor of a unit: where it begins in unit bytes, and its true length (not padded).
struct UnitTensor {
  std::size_t index = 0;  ///< position in the decided batch
  Range range;
  bool operator==(const UnitTensor&) const = default;
};

struct Unit {
  OperationKind kind = OperationKind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind device = DeviceKind::cpu;
  int root = 0;  ///< world rank, of broadcasts
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<UnitTensor> tensors;
  std::size_t bytes = 0;        ///< padded length
  std::size_t chunk_bytes = 0;  ///< length of every chunk but the last; a multiple of 64
  bool operator==(const Unit&) const = default;

  std::size_t chunks() const { return bytes == 0 ? 0 : (bytes + chunk_bytes - 1) / chunk_bytes; }
  /// It runs whole.
  void make_one_chunk() { chunk_bytes = std::max(bytes, kAlignment); }
};

/// Cuts a decided batch into units, in its order: the one that begins with tensor `first` into
/// `unit`, whose memory is used again; returns the next one's first. Neighbours of equal kind,
/// type, op, root, scale and device are fused within the threshold. No bytes: no chunk.
std::size_t plan_unit(std::span<const Signature* const> decided, std::size_t first,
                      const PlanLimits& limits, Unit& unit);

/// A broadcast with such a tensor: ranks read the unit as far as its root says (UnitProgress).
bool is_followed(const Unit& unit);

Range chunk_range(const Unit& unit, std::size_t chunk);
/// Slice `slice` of `slices` of that chunk; may be empty at a short chunk's end.
Range slice_range(Range chunk, int slice, int slices);

/// A run of one tensor's bytes that lies in a range of the unit.
struct Run {
  std::size_t tensor = 0;  ///< position in Unit::tensors
  Range range;             ///< within the tensor
  std::size_t offset = 0;  ///< of the run's first byte from the range's first byte
  bool operator==(const Run&) const = default;
};
/// The tensors' bytes in `range`, padding left out, in order: calls body(const Run&) for each.
template <class Body>
void for_each_run(const Unit& unit, Range range, Body&& body) {
  auto tensor = std::ranges::partition_point(
      unit.tensors, [&](const UnitTensor& t) { return t.range.end() <= range.begin; });
  for (; tensor != unit.tensors.end() && tensor->range.begin < range.end(); ++tensor) {
    const std::size_t from = std::max(range.begin, tensor->range.begin);
    const std::size_t to = std::min(range.end(), tensor->range.end());
    if (from >= to) continue;
    body(Run{static_cast<std::size_t>(tensor - unit.tensors.begin()),
             {from - tensor->range.begin, to - from},
             from - range.begin});
  }
}
/// The same as a list.
std::vector<Run> runs(const Unit& unit, Range range);

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
  /// The extents of a rank, while known.
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

class DeviceWork;

/// The destination of an exchange's result.
class ExchangeResult {
 public:
  virtual ~ExchangeResult() = default;
  /// Memory for all rows, `bytes` long (null for 0). `rows`: by the rank of the set that they came
  /// from; of a reduce-scatter this rank's. Called once, by the thread that makes progress. Host
  /// memory lies in this rank's windows. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::span<const std::int64_t> rows, std::size_t bytes) = 0;
  /// Before, by the submitting thread: windows' memory that allocate() uses if the result is_even()
  /// and `bytes` long; null where it does not. Throws Error(out_of_memory).
  virtual std::byte* expect(std::size_t /*bytes*/) { return nullptr; }
  /// In allocate()'s place, on every rank alike: the collective fails with this error.
  void refuse(Error why) { refusal_ = std::move(why); }
  /// Once the unit is complete.
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  std::optional<Error> refusal_;
};

/// Whether a rank has memory for the result of an exchange on a device, told to the ranks of its
/// node before any of them begins. A word in its shared memory, 0 at first.
class ResultRoom {
 public:
  enum class Answer : std::uint32_t { none_yet, enough, lacking };
  explicit ResultRoom(std::uint32_t& word) : word_(&word) {}
  void tell(Answer answer) const {
    std::atomic_ref(*word_).store(static_cast<std::uint32_t>(answer), std::memory_order_release);
  }
  Answer answer() const {
    return static_cast<Answer>(std::atomic_ref(*word_).load(std::memory_order_acquire));
  }

 private:
  std::uint32_t* word_;
};

/// The parts of a unit that an exchange (is_exchange) has besides.
struct BoundExchange {
  std::size_t row_bytes = 0;  ///< of one row: all dimensions but the first
  /// By local rank, in its shared memory until completion. allgather: {rows}; alltoall: rows for
  /// each rank of the set; reduce_scatter: {rows of the whole}, equal everywhere.
  std::vector<std::span<const std::int64_t>> rows;
  std::shared_ptr<ExchangeResult> result;
  /// The extents of the same name's last run, between several nodes; null: kept for no other run.
  std::shared_ptr<LastExtents> last = nullptr;
  bool repeats = false;  ///< every rank brings what it brought to that; the same on all ranks
  /// In one node, of what may_push(), by local rank: its input lies where no peer reads, so it puts
  /// its rows into the others' results itself. Empty: no rank does.
  std::vector<bool> pushes = {};
  /// Beside `pushes`: where the result will be if it is_even(), or kNowhere.
  std::vector<Location> expected = {};
  std::vector<ResultRoom> room = {};  ///< on a device: by local rank
};

/// Accesses to memory that are still to come, from the least on.
enum class MemoryUse : std::uint8_t { none, reads, writes };

struct BoundUnit {
  /// 1, 2, ... in the order of start; 0: not known.
  std::uint64_t number = 0;
  /// Called as this rank's data begins to move, at most once: the last moment at which addresses of
  /// its own memory can be changed. By the thread that makes progress; may be null.
  std::function<void(BoundUnit&)> on_start = {};
  Unit unit;
  double scale = 1.0;  ///< applied once to the complete sum
  int root_node = 0;   ///< of broadcasts
  int root_local = 0;  ///< of broadcasts: the root's local rank in its node
  int root_index = 0;  ///< of broadcasts: the root's place among the ranks of the set
  int local_size = 1;
  /// [position in unit.tensors * local_size + local rank]; on a device this rank's alone are set.
  std::vector<std::byte*> memory;
  /// As `memory`, in place on a device: each rank's tensor (BegunOnDevice::place), or kNowhere.
  std::vector<Location> places;
  std::vector<std::shared_ptr<DeviceWork>> work;  ///< by position; on a device only
  /// Some of this rank's memory is a caller's, who has it back when the unit has completed or
  /// failed: before that, what comes from the network must have ended (DataPath::withdraw).
  bool is_lent = false;
  /// Tensors of a broadcast in one node that this rank fetches whole into `target`, where no peer
  /// can write. `memory` has none of this rank's for them.
  struct Fetch {
    std::size_t position;
    std::byte* target;
  };
  std::vector<Fetch> fetches;
  /// Tensors of such a broadcast whose root is this rank: their bytes are still in `source`.
  struct Publish {
    std::size_t position;
    const std::byte* source;
  };
  std::vector<Publish> publishes;
  /// This rank has joined: it has none of the tensors, and contributes identity elements.
  bool is_joined_proxy = false;
  /// Other sets may have collectives on the device (LaunchTicketLock). The same on all ranks.
  bool takes_turns = false;
  BoundExchange exchange = {};  ///< of exchanges: one tensor, this rank's input

  /// As a new one, but for the memory that its lists own, which is used again. Field by field:
  /// small collectives take 5 % longer where the whole is moved.
  void clear() {
    if (is_exchange(unit.kind)) exchange = {};
    number = 0;
    on_start = nullptr;
    unit.tensors.clear();
    unit = {.tensors = std::move(unit.tensors)};
    scale = 1.0;
    root_node = root_local = root_index = 0;
    local_size = 1;
    memory.clear();
    places.clear();
    work.clear();
    is_lent = is_joined_proxy = takes_turns = false;
    fetches.clear();
    publishes.clear();
  }

  std::byte* tensor(std::size_t position, int local_rank) const {
    return memory[position * static_cast<std::size_t>(local_size) +
                  static_cast<std::size_t>(local_rank)];
  }
};

/// Memory node i has the local ranks [i * ranks, (i + 1) * ranks).
struct MemoryNodes {
  int count = 1;  ///< 1: all ranks are taken as one memory node's
  int ranks = 0;  ///< of each, where there are several
  bool operator==(const MemoryNodes&) const = default;

  /// A sum shorter than this takes one pass over all ranks, which waits for no rank.
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

  /// The memory nodes of one node's ranks. `of_rank`: by local rank, the number of the only memory
  /// node whose processors it may use; negative: it may use those of several, or none is known.
  /// Several only where each has the same number of ranks, two or more, next to each other.
  static MemoryNodes of(std::span<const int> of_rank);
  /// The memory nodes of a set: one where it has several nodes. `of_rank`: likewise, by world rank.
  static MemoryNodes of(const Topology& set, std::span<const int> of_rank);

  /// Whether an allreduce of `bytes` bytes goes by memory nodes, if no rank has joined. Not what is
  /// prescaled, nor types whose sums are wider than their elements.
  bool sum_apart(const Signature& signature, std::size_t bytes) const;
  bool sum_apart(const BoundUnit& unit) const;
};

/// By world rank: the number of its memory node in its node, each of `ranks` consecutive ones.
std::vector<int> virtual_memory_nodes(const Topology& world, int ranks);

/// An exchange, as soon as the extents of all ranks are known.
struct ExchangeExtents {
  OperationKind kind = OperationKind::allgather;
  std::size_t row_bytes = 0;
  /// By rank: as BoundExchange::rows.
  std::vector<std::span<const std::int64_t>> rows;
};

/// How many extents a rank has: alltoall: one for each rank, else one.
std::size_t extents_of_rank(OperationKind kind, int ranks);

/// The rows that a rank gets of a reduce-scatter of `rows` rows: rows / ranks, the first rows %
/// ranks ranks one more; rank r's begin where those of rank r - 1 end.
std::int64_t scattered_rows(std::int64_t rows, int ranks, int rank);
std::int64_t first_scattered_row(std::int64_t rows, int ranks, int rank);

/// The part for rank `to` of a rank with these extents; empty of an allgather, where all get all.
Range rows_to_rank(OperationKind kind, std::span<const std::int64_t> rows, int ranks, int to,
                   std::size_t row_bytes);

struct Transfer {
  /// As source: the sum over all local ranks of the node, each at source_offset. As destination:
  /// every local rank of the node, each at destination_offset.
  static constexpr int kAll = -1;
  int source = 0;  ///< local rank in the node that gives
  std::size_t source_offset = 0;
  int destination = 0;  ///< local rank in the node that gets
  std::size_t destination_offset = 0;
  Range range;  ///< in the layout
  bool operator==(const Transfer&) const = default;
};
/// Pieces that follow one another without a gap, from 0; none is empty.
using ByteLayout = std::vector<Transfer>;

std::size_t length_of(const ByteLayout& layout);
/// The part of the layout in `range`, which may end beyond it, from the range's first byte.
ByteLayout cut(const ByteLayout& layout, Range range);
/// For these a rank can write what it gives into the others' results.
bool may_push(OperationKind kind);

/// The transfers that this local rank moves, as a layout: those that it pushes, and those that come
/// to it and no rank pushes. `pushes`: by local rank; empty: none does.
ByteLayout moved_by(int local_rank, const std::vector<bool>& pushes, const ByteLayout& layout);

/// As many rows from or to every rank, and at least one: what results are expected to be.
bool is_even(std::span<const std::int64_t> rows);

/// The bytes of every layout a round, about `chunk_bytes` out of a node. A multiple of 64.
std::size_t round_bytes(std::size_t chunk_bytes, int nodes);

/// Offsets of rows and streams of one exchange, whose spans and topology outlive it. The
/// constructor throws Error(transport) for invalid extents; else no sum wraps without refusal().
class ExchangeMap {
 public:
  ExchangeMap(const Topology& topology, ExchangeExtents extents);

  /// Error(out_of_memory), the same on every rank, where the results of all ranks are more than the
  /// `memory` bytes that their nodes have together: nothing below is to be called then.
  std::optional<Error> refusal(std::uint64_t memory) const;

  /// alltoall: from rank to rank, sources first. reduce-scatter: the part of each destination.
  ByteLayout layout(int from_node, int to_node) const;
  /// The longest stream between two different nodes.
  std::size_t longest_stream() const;

  /// The rows that ExchangeResult::allocate gets on that rank.
  std::vector<std::int64_t> result_rows(int rank) const;
  std::size_t result_bytes(int rank) const;

 private:
  /// The ranks of a node; where all of the set give the same (of a reduce-scatter: as the sum), or
  /// get the same (of an allgather), one that stands for all.
  const std::vector<int>& ranks(int node, OperationKind all_alike) const;
  std::int64_t rows(int from_rank, int to_rank) const;
  std::size_t bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows) * extents_.row_bytes;
  }

  const Topology& topology_;
  ExchangeExtents extents_;
  int size_;
  Checked all_rows_;  ///< what all ranks say, added up
};

}  // namespace hora::internal
