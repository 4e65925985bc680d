/// A unit together with the memory of its tensors on every rank of this rank's node.
#pragma once

#include <hora/error.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/control_block/tensor_id.h"
#include "core/plan/plan.h"

namespace hora::internal {

class DeviceWork;

/// The destination of an exchange's result.
class ExchangeResult {
 public:
  virtual ~ExchangeResult() = default;
  /// Memory for rows[0] + rows[1] + ... rows, `bytes` long (null where that is 0). `rows`: by the
  /// rank of the set that they came from; of a reduce-scatter one number, this rank's rows. Called
  /// once, by the thread that makes progress, as soon as all sizes are known. Host memory lies in
  /// this rank's windows. Throws Error(out_of_memory).
  virtual std::byte* allocate(std::span<const std::int64_t> rows, std::size_t bytes) = 0;
  /// In allocate()'s place, on every rank alike: the collective fails with this error.
  void refuse(Error why) { refusal_ = std::move(why); }
  /// Once the unit is complete.
  const std::optional<Error>& refusal() const { return refusal_; }

 private:
  std::optional<Error> refusal_;
};

/// The place of an ExchangeResult that will lie in this rank's windows, before sizes are known.
class ResultPlace {
 public:
  virtual ~ResultPlace() = default;
  /// By the submitting thread: memory in this rank's windows, of which allocate() makes the result
  /// if that is_even() (plan/exchange.h), and then `bytes` long. Throws Error(out_of_memory).
  virtual std::byte* expect(std::size_t bytes) = 0;
};

/// Of an exchange on a device: whether a rank has memory for its result, which it tells the ranks
/// of its node before any of them begins. A word in its shared memory, 0 at first.
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

/// What a unit of one of the exchange operations (is_exchange) has besides.
struct BoundExchange {
  std::size_t row_bytes = 0;  ///< of one row: all dimensions but the first
  /// By local rank, in that rank's shared memory until the unit is complete. allgather: {rows};
  /// alltoall: rows for each rank of the set; reduce_scatter: {rows of the whole}, equal
  /// everywhere.
  std::vector<std::span<const std::int64_t>> rows;
  std::shared_ptr<ExchangeResult> result;
  /// Of several nodes: those of the same name's last run; null: kept for no other run.
  std::shared_ptr<LastExtents> last = nullptr;
  bool repeats = false;  ///< every rank brings what it brought to that; the same on all ranks
  /// In one node, of what may_push(), by local rank: its input lies where no peer reads, so it puts
  /// its rows into the others' results itself. Empty: no rank does.
  std::vector<bool> pushes = {};
  /// Beside `pushes`: where the result will be if it is_even(), or kNowhere.
  std::vector<Location> expected = {};
  std::vector<ResultRoom> room = {};  ///< on a device: by local rank
};

struct BoundUnit;

/// Called as a unit moves on. Thread rule: the thread that makes progress.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  /// This rank's data of the unit, which is under way, begins to move: the last moment at which
  /// addresses of this rank's own memory in it can be changed. At most once each.
  virtual void started(BoundUnit& unit) = 0;
};

/// What is still done to memory, from the least on.
enum class MemoryUse : std::uint8_t { none, reads, writes };

struct BoundUnit {
  /// 1, 2, ... in the order of start; 0: not known.
  std::uint64_t number = 0;
  UnitObserver* observer = nullptr;  ///< outlives it; null: none
  Unit unit;
  double scale = 1.0;  ///< applied once to the complete sum
  int root_node = 0;   ///< of broadcasts
  int root_local = 0;  ///< of broadcasts: the root's local rank in its node
  int root_index = 0;  ///< of broadcasts: the root's place among the ranks of the set
  int local_size = 1;
  /// [position in unit.tensors * local_size + local rank]; on a device this rank's alone are set.
  std::vector<std::byte*> memory;
  /// Likewise, of units in place on a device: what the ranks of the node have said of their
  /// tensors (BegunOnDevice::place); kNowhere of one that has joined.
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
  /// Likewise, as its root: those whose bytes are not in `memory` yet, but in `source`.
  struct Publish {
    std::size_t position;
    const std::byte* source;
  };
  std::vector<Publish> publishes;
  /// This rank has joined: it has none of the tensors, and contributes identity elements.
  bool is_joined_proxy = false;
  /// On a device: other process sets may have collectives there (LaunchTicketLock). The same on all
  /// ranks.
  bool takes_turns = false;
  BoundExchange exchange;  ///< of exchanges: one tensor, this rank's input

  /// As a new one, but for the memory that its lists own, which is used again.
  void clear() {
    if (is_exchange(unit.kind)) exchange = {};
    number = 0;
    observer = nullptr;
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

}  // namespace hora::internal
