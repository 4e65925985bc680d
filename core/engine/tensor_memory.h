/// How the memory of a operation's tensor is reached: by this rank, and by the other ranks of its
/// node.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "core/base/checked.h"
#include "core/base/sync.h"
#include "core/control_block/tensor_id.h"
#include "core/engine/interfaces.h"
#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"

namespace hora::internal {

struct Request;

/// `waits`: the caller blocks, so its data stay alive and unchanged until completion. `goes_on`: an
/// exception may drop the handle while the collective goes on, and the memory may be freed then. So
/// peers touch none of it; this rank's engine and its messages may, until cancel().
enum class Caller { goes_on, waits };

/// The header that a rank publishes in its own window about its part of an exchange. Followed by
/// `count` extents.
struct ExchangeHeader {
  Location payload;   ///< where peers read the input (kNowhere: not at all); on a device unused
  Location expected;  ///< where the result will be if it is even, or kNowhere
  std::uint64_t bytes = 0;  ///< of the input
  std::uint64_t count = 0;
  std::uint32_t room = 0;  ///< of ResultRoom
  std::uint32_t unused = 0;

  static std::size_t bytes_for(std::size_t extents) {
    return sizeof(ExchangeHeader) + extents * sizeof(std::int64_t);
  }
  static void write(std::byte* memory, Location payload, Location expected, std::size_t bytes,
                    std::span<const std::int64_t> extents) {
    new (memory) ExchangeHeader{payload, expected, bytes, extents.size(), 0, 0};
    std::memcpy(memory + sizeof(ExchangeHeader), extents.data(), extents.size_bytes());
  }
  /// Reads a header that this rank has written.
  static std::span<const std::int64_t> extents_of(const std::byte* memory) {
    return {reinterpret_cast<const std::int64_t*>(memory + sizeof(ExchangeHeader)),
            static_cast<std::size_t>(reinterpret_cast<const ExchangeHeader*>(memory)->count)};
  }
  /// Part of a header that ExchangePart has found valid.
  static std::uint32_t& room_of(std::byte* memory) {
    return reinterpret_cast<ExchangeHeader*>(memory)->room;
  }
};

/// A header with `extents` extents, which stay where they are: none is negative, and together they
/// are rows of `row_bytes` bytes in an input of `bytes`. Throws Error(transport) for any other.
struct ExchangePart {
  ExchangeHeader header;
  std::span<const std::int64_t> extents;

  ExchangePart(const std::byte* memory, std::size_t count, std::size_t row_bytes, int rank) {
    BoundedReader reader({memory, ExchangeHeader::bytes_for(count)},
                         {"the header of an exchange", rank});
    header = reader.take<ExchangeHeader>();
    const std::span<const std::byte> rest = reader.take_bytes(count * sizeof(std::int64_t));
    if (reinterpret_cast<std::uintptr_t>(rest.data()) % alignof(std::int64_t) != 0) {
      reader.refuse("it is misaligned");
    }
    extents = {reinterpret_cast<const std::int64_t*>(rest.data()), count};
    Checked rows = 0;
    for (const std::int64_t extent : extents) rows = rows + extent;
    const Checked bytes = rows * row_bytes;
    if (header.count != count || !bytes.at_most(kMaxBytes) || bytes.value() != header.bytes) {
      reader.refuse("its " + std::to_string(header.count) + " extents are not those of " +
                    std::to_string(header.bytes) + " bytes in rows of " +
                    std::to_string(row_bytes));
    }
  }
};

/// The ways in which a tensor's memory is reached. Peers: the other ranks of the node.
enum class MemoryWay {
  nothing,   ///< it has no bytes, or this rank has joined
  windows,   ///< it lies in this rank's windows: peers read and write it there
  result,    ///< an allgather's input, copied to its place in the result, where peers read it
  in_place,  ///< only this rank reads and writes it, where the caller has it
  /// As in_place, but for all bytes outside of `own`, which peers read and write in a block.
  around,
  block,      ///< a block represents it: this rank and its peers read and write that
  published,  ///< of a broadcast's root: the data path copies it to a block, from which peers read
  fetched,    ///< of a broadcast: the data path copies the root's bytes to it
  device,     ///< it lies on the device, where the collective runs
  through_host,  ///< it lies on a device; a block in host memory represents it
};

/// The facts that plan_memory() depends on.
struct MemoryFacts {
  OperationKind kind = OperationKind::allreduce;
  std::size_t bytes = 0;
  Caller caller = Caller::goes_on;
  bool brings_data = true;  ///< false: a broadcast of another rank's data
  bool runs_on_device = false;
  bool is_on_device = false;  ///< the data that is given
  bool in_windows = false;
  bool has_place = false;    ///< in an allgather's result
  bool single_node = false;  ///< of the set
  Range own;                 ///< own_part(): of a caller that waits, and of allreduces
};

struct MemoryPlan {
  MemoryWay way = MemoryWay::nothing;
  Range own = {};  ///< never copied; all of it where `in_place`
  bool copies_in = false;
  bool copies_out = false;
  bool operator==(const MemoryPlan&) const = default;
};

MemoryPlan plan_memory(const MemoryFacts& facts);

/// Blocks for small tensors, which are used again without asking the node's memory for them. Thread
/// rule: any thread; its lock is a leaf, held for a few instructions.
class SmallBlocks {
 public:
  static constexpr std::size_t kBytes = 1024;  ///< of each

  /// `memory` outlives it.
  explicit SmallBlocks(NodeMemory& memory) : memory_(memory) {}
  ~SmallBlocks();
  SmallBlocks(const SmallBlocks&) = delete;
  SmallBlocks& operator=(const SmallBlocks&) = delete;

  /// Throws Error(out_of_memory).
  NodeMemory::MemoryBlock take();
  void put_back(const NodeMemory::MemoryBlock& block);

 private:
  NodeMemory& memory_;
  Mutex mutex_;
  std::vector<NodeMemory::MemoryBlock> free_ HORA_GUARDED_BY(mutex_);
};

/// How long the blocks are together that represent tensors in flight. Thread rule: any thread.
class BlockVolume {
 public:
  /// Data copied to or from longer ones are out of the caches before they are read.
  static constexpr std::size_t kCached = std::size_t{16} << 20;

  void add(std::size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void remove(std::size_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  bool exceeds_caches() const { return bytes_.load(std::memory_order_relaxed) > kCached; }

 private:
  std::atomic<std::size_t> bytes_{0};
};

/// The memory of one set, and this rank's position in it. References outlive it.
struct SetMemory {
  const SetParts& set;
  DevicePort* device;  ///< where this process has one
  DeviceHeap* heap;    ///< likewise
  int rank;            ///< world rank
  int local_rank;
  int local_size;
  SmallBlocks* small = nullptr;   ///< null: small tensors have blocks of the memory itself
  BlockVolume* volume = nullptr;  ///< null: blocks are not counted
  bool is_world = false;

  NodeMemory& memory() const { return *set.memory; }
  const Topology& topology() const { return set.topology; }
  bool single_node() const { return topology().nodes() == 1; }
  /// False for broadcasts whose root is another rank.
  bool brings_data(const Signature& signature) const {
    return signature.kind != OperationKind::broadcast || signature.root == rank;
  }
  /// The set's collectives of this kind run on the device: see runs_on_device in signature.h.
  bool on_device(const Signature& signature) const {
    return runs_on_device(signature, single_node() || set.device_spans_nodes);
  }
};

/// The part of `bytes` bytes that no other rank of the node touches: all of it where there is none;
/// this rank's own part of an exchange; in a set of one node also its slice of a large tensor,
/// which is a unit of its own there, unless its sum goes by memory nodes. `rows`: of exchanges
/// (BoundExchange::rows).
Range own_part(const SetMemory& set, const Signature& signature, std::size_t bytes,
               std::span<const std::int64_t> rows);

/// Owner of what represents one operation's tensor while it is in flight: a block, a header, an
/// event. Thread rule: copy_in() before it is announced, copy_out() and release() once it is
/// finished, each by one thread; the rest between them, by the thread that makes progress.
class TensorMemory {
 public:
  /// No data, but a place that is published (Request::location).
  void set_location(Location location) { location_ = location; }
  /// For a rank that has joined, and so contributes nothing to a tensor of `bytes` bytes.
  void contribute_nothing(std::size_t bytes) {
    bytes_ = bytes;
    location_ = kNowhere;
  }
  /// Makes the data reachable, in a way that plan_memory() chooses; of an exchange also a header.
  /// release() frees it, also where this throws: Error(out_of_memory) and, of memory on a device,
  /// Error(transport).
  void copy_in(const SetMemory& set, const Signature& signature, const Request& request,
               Caller caller);
  /// The result goes to where the caller has the tensor, on a device in the order of the streams.
  void copy_out(const SetMemory& set);
  void release(const SetMemory& set);
  /// The caller's memory is not touched any more: what the engine has yet to read there is copied
  /// to the block, and nothing is copied out. With the progress lock held, before it is finished;
  /// own_data() is another from then on. False where that is too late: messages may be on their way
  /// into the memory until it is finished.
  [[nodiscard]] bool cancel();
  bool is_cancelled() const { return is_cancelled_; }
  /// From now on messages use own_data().
  void note_messages() { in_messages_ = true; }
  /// Peers may still touch what would be released: it stays.
  void leave_in_place() {
    block_ = header_ = nullptr;
    is_small_ = false;
  }

  /// On a device: the stream that the result is ordered before, in place of the request's.
  void set_stream(void* stream) {
    stream_ = stream;
    output_stream_.reset();
  }
  /// Null where the memory is not on a device.
  const std::shared_ptr<DeviceWork>& work() const { return work_; }

  /// Published to the node's ranks: where the tensor lies, or an exchange's header; of a
  /// tensor on the device what that says of it (BegunOnDevice).
  Location location() const { return location_; }
  std::size_t bytes() const { return bytes_; }
  /// An ExchangeHeader in this rank's window; null where it is no exchange.
  std::byte* header() const { return header_; }
  /// The data as this rank's engine reads and writes it. A caller that waits leaves the input of an
  /// exchange, which is not written to, as it is.
  std::byte* own_data() const;
  /// own_data() is the caller's memory.
  bool is_in_place() const {
    return plan_.way == MemoryWay::in_place || plan_.way == MemoryWay::around;
  }
  /// Where the data path copies the bytes of a broadcast to, or null.
  std::byte* fetches_to() const { return plan_.way == MemoryWay::fetched ? data_ : nullptr; }
  /// Where it copies them from to own_data(), or null.
  const std::byte* published_from() const {
    return plan_.way == MemoryWay::published ? data_ : nullptr;
  }

 private:
  void take(const SetMemory& set, const Signature& signature, const Request& request, Caller caller,
            const std::optional<NodeMemory::MemoryBlock>& result);
  void take_block(const SetMemory& set);
  void copy_to_block(const SetMemory& set, OperationKind kind);
  void write_header(const SetMemory& set, const Request& request, Location expected);

  MemoryPlan plan_;
  bool is_cancelled_ = false;
  bool in_messages_ = false;
  std::byte* data_ = nullptr;   ///< the caller's; of `result` its copy
  std::byte* block_ = nullptr;  ///< what represents it
  Location block_location_;
  bool is_small_ = false;  ///< of SetMemory::small
  std::byte* header_ = nullptr;
  Location location_;
  std::size_t bytes_ = 0;
  void* stream_ = nullptr;
  std::optional<void*> output_stream_;
  std::shared_ptr<DeviceWork> work_;
};

}  // namespace hora::internal
