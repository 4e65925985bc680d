/// The operations of one rank on one process set, from the call to completion: their names, how
/// other ranks learn of them, how the memory of their tensors is reached, their results and errors.
#pragma once

#include <deque>
#include <new>

#include "core/base/text.h"
#include "core/engine/interfaces.h"
#include "core/messages/messages.h"
#include "core/negotiation/leader.h"

namespace hora::internal {

/// The engine's clock.
inline Duration now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

/// A copy that shares no text: std::runtime_error's do, counted where thread checkers see nothing.
inline Error detached(const Error& error) {
  return {error.code(), std::string(error.what()), error.rank(), error.tensor()};
}

/// From the operation to the end. Pure.
struct TimeLimit {
  std::chrono::milliseconds length{0};  ///< 0: none
  bool is_of_call = false;              ///< else that of HORA_TIMEOUT

  /// `of_call`: 0: HORA_TIMEOUT holds; milliseconds::max(): no limit.
  static TimeLimit of(std::chrono::milliseconds of_call, std::chrono::milliseconds setting);
  /// The end of what was submitted at this time; Duration::max() where there is none. The first
  /// rank to notice reports it for the whole job: ranks that know less give the others a little
  /// time. `report_order`: 0 on the rank that decides, 1 on other leaders, 2 on their nodes' ranks.
  Duration end(Duration submitted, int report_order = 0) const;
  /// When that end is reported to the root, so that it knows of all ranks by then, or max().
  Duration notice(Duration submitted) const;
  /// The report to it then.
  Expiry expiry(Duration submitted, Duration now) const;
};

/// An operation that a user asks for.
struct Request {
  std::string_view name;  ///< outlives the call; empty: unnamed (see collectives.h)
  Signature signature;
  std::byte* data = nullptr;
  void* stream = nullptr;  ///< on a device: `data` is ready once it has reached this
  /// The stream after which an exchange's result may be written; none: `stream`.
  std::optional<void*> output_stream = std::nullopt;
  /// For exchanges: the length of `data`, the extents that this rank brings (BoundExchange::rows),
  /// and where the result goes.
  std::size_t bytes = 0;
  std::vector<std::int64_t> rows = {};
  std::shared_ptr<ExchangeResult> result = nullptr;
  /// Published to the node's ranks instead of where `data` lies.
  std::optional<Location> location = std::nullopt;
  /// See AllreduceOptions::timeout.
  std::chrono::milliseconds timeout{0};
};

/// `waits`: the caller blocks, so its data stay alive and unchanged until completion. `goes_on`: an
/// exception may drop the handle while the collective goes on, and the memory may be freed then. So
/// peers touch none of it; this rank's engine and its messages may, until cancel().
enum class Caller { goes_on, waits };

/// A rank's header in its window about its part of an exchange. `count` extents follow.
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
  Range own = {};            ///< own_part(): of a caller that waits, and of allreduces
};

struct MemoryPlan {
  MemoryWay way = MemoryWay::nothing;
  Range own = {};  ///< never copied; all of it where `in_place`
  bool copies_in = false;
  bool copies_out = false;
  bool operator==(const MemoryPlan&) const = default;
};

MemoryPlan plan_memory(const MemoryFacts& facts);

/// Blocks that represent tensors in flight. Small ones are used again without asking the node's
/// memory for them. Thread rule: any thread; its lock is a leaf, held for a few instructions.
class TensorBlocks {
 public:
  static constexpr std::size_t kSmall = 1024;
  /// Data copied to or from more than this are out of the caches before they are read.
  static constexpr std::size_t kCached = std::size_t{16} << 20;

  /// `memory` outlives it.
  explicit TensorBlocks(NodeMemory& memory) : memory_(memory) {}
  ~TensorBlocks();

  /// Throws Error(out_of_memory).
  NodeMemory::MemoryBlock take(std::size_t bytes);
  /// `bytes`: as taken.
  void put_back(const NodeMemory::MemoryBlock& block, std::size_t bytes);
  bool exceed_caches() const { return in_flight_.load(std::memory_order_relaxed) > kCached; }

 private:
  NodeMemory& memory_;
  std::atomic<std::size_t> in_flight_{0};  ///< bytes
  Mutex mutex_;
  std::vector<NodeMemory::MemoryBlock> small_ HORA_GUARDED_BY(mutex_);
};

/// A process set, and this rank's part in it. References outlive it. Thread rule: any thread.
struct SetMember {
  SetParts parts;
  const EngineParts& engine;
  ProcessSet id = kWorld;
  int node = parts.topology.node_of(engine.rank);
  int local_rank = parts.control_block->local_rank();
  int local_size = parts.control_block->local_size();
  Tracer trace = engine.trace.of_set(id);
  RecordWriter record = engine.record();
  mutable TensorBlocks blocks{*parts.memory};

  int rank() const { return engine.rank; }
  NodeMemory& memory() const { return *parts.memory; }
  const Topology& topology() const { return parts.topology; }
  /// World ranks by local rank.
  const std::vector<int>& ranks_of_node() const {
    return topology().ranks_of_node[static_cast<std::size_t>(node)];
  }
  /// The rank that decides.
  int root() const { return topology().ranks_of_node.front().front(); }
  bool single_node() const { return topology().nodes() == 1; }
  /// False for broadcasts whose root is another rank.
  bool brings_data(const Signature& signature) const {
    return signature.kind != OperationKind::broadcast || signature.root == rank();
  }
  /// The set's collectives of this kind run on the device: see runs_on_device in messages.h.
  bool on_device(const Signature& signature) const {
    return runs_on_device(signature, single_node() || parts.device_spans_nodes);
  }
};

/// The part of `bytes` bytes that no other rank of the node touches: all where there is none; of an
/// exchange (`rows`: BoundExchange::rows) this rank's own; in a set of one node its slice of a
/// large tensor, unless its sum goes by memory nodes.
Range own_part(const SetMember& set, const Signature& signature, std::size_t bytes,
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
  /// Makes the data reachable as plan_memory() chooses; of an exchange also a header. release()
  /// frees it, also where this throws Error(out_of_memory) or, on a device, Error(transport).
  void copy_in(const SetMember& set, const Signature& signature, const Request& request,
               Caller caller);
  /// The result goes to where the caller has the tensor, on a device in the order of the streams.
  void copy_out(const SetMember& set);
  void release(const SetMember& set);
  /// Stops the use of the caller's memory: the rest is copied to the block, nothing is copied out,
  /// own_data() is another. With the progress lock held, before the end. False where messages may
  /// be on their way into it until it is finished.
  [[nodiscard]] bool cancel();
  /// From now on messages use own_data().
  void note_messages() { in_messages_ = true; }
  /// Peers may still touch what would be released: it stays.
  void leave_in_place() {
    block_ = {};
    header_ = nullptr;
  }

  /// On a device: the stream that the result is ordered before, in place of the request's.
  void set_stream(void* stream) {
    stream_ = stream;
    output_stream_.reset();
  }
  /// Null where the memory is not on a device.
  const std::shared_ptr<DeviceWork>& work() const { return work_; }

  /// Published to the node: the place of the tensor, of an exchange's header, or BegunOnDevice's.
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
  void take(const SetMember& set, const Signature& signature, const Request& request, Caller caller,
            const std::optional<NodeMemory::MemoryBlock>& result);

  MemoryPlan plan_;
  bool in_messages_ = false;
  std::byte* data_ = nullptr;      ///< the caller's; of `result` its copy
  NodeMemory::MemoryBlock block_;  ///< what represents it
  std::byte* header_ = nullptr;
  Location location_;
  std::size_t bytes_ = 0;
  void* stream_ = nullptr;
  std::optional<void*> output_stream_;
  std::shared_ptr<DeviceWork> work_;
};

class Operations;
struct NameEntry;

struct Operation {
  enum State : std::uint32_t { kPending = 0, kDone = 1, kFailed = 2 };

  std::string name;
  Signature signature;
  Operations* owner = nullptr;  ///< null: the proxy of a rank that has joined; no handle knows it
  TensorMemory memory;
  std::shared_ptr<ExchangeResult> result;
  std::shared_ptr<LastExtents> last_extents;  ///< the name's; null: it is no such exchange
  bool repeats = false;                       ///< BoundExchange::repeats
  /// By local rank, once it is decided: what each publishes of its memory.
  std::vector<Location> locations;
  std::uint64_t unit = 0;  ///< the number of the unit that it is in; 0: none yet
  int number = 0;  ///< the result of a change of process sets (the set), of join (the last rank)

  // Guarded by the engine's table lock.
  NameEntry* entry = nullptr;  ///< in the NameTable, while this is the name's operation
  std::optional<Id> id;        ///< as which this rank is ready; none: reported by name
  bool decided = false;
  bool is_detached = false;  ///< its handle was dropped by an exception
  Duration submitted{};      ///< zero until it is announced
  Duration overdue_at{};
  Duration reported_overdue{};  ///< to the leader, first since it was answered; zero: never
  Duration answered{};          ///< the root has asked all ranks about it, the last time
  TimeLimit limit;
  Duration out_of_time_at = Duration::max();
  Duration notice_at = Duration::max();  ///< when it is reported to the leader; max(): it has been
  Duration decided_at{};
  RecordTicket record = kNoTicket;  ///< constant once it is announced

  std::atomic<std::uint32_t> state{kPending};
  std::optional<Error> error;  ///< written before `state` becomes kFailed

  /// As a new one, but for its name, its signature and its set: for the next call of that name.
  void renew() {
    memory = {};
    unit = 0;
    number = 0;
    id.reset();
    repeats = decided = is_detached = false;
    submitted = overdue_at = reported_overdue = answered = decided_at = {};
    out_of_time_at = notice_at = Duration::max();
    record = kNoTicket;
    state.store(kPending, std::memory_order_relaxed);
    error.reset();
  }

  /// An exchange to which this rank brings other extents than to the name's last run, if known.
  bool is_resized(const SetMember& set) const {
    return last_extents && !last_extents->are(set.topology().index_of(set.rank()),
                                              ExchangeHeader::extents_of(memory.header()));
  }
  bool announced() const { return submitted != Duration{}; }
  /// When its time limit asks for something: a report to the root, or its end.
  Duration next_timeout() const { return std::min(notice_at, out_of_time_at); }
  /// The root has not answered that it is overdue.
  bool root_is_silent(Duration time) const;
  bool finished() const { return state.load(std::memory_order_acquire) != kPending; }
};

/// A rank's knowledge of one name.
struct NameEntry {
  std::optional<Id> id;
  Signature signature;                   ///< the id's
  std::shared_ptr<Operation> operation;  ///< until its handle releases it
  /// The id's, of exchanges to which ranks may bring other extents each time; else null.
  std::shared_ptr<LastExtents> last_extents;
  /// Where the name has an id: ended operations that its next calls use again. Two, because the
  /// thread that has reported the end of one may hold it for a while.
  std::array<std::shared_ptr<Operation>, 2> spares;
};

/// Thread rule: guarded by the engine's table lock.
class NameTable {
 public:
  explicit NameTable(int id_capacity) : slots_(static_cast<std::size_t>(id_capacity)) {}

  /// Enters a former operation of the name, renewed, that nothing refers to, or null.
  std::shared_ptr<Operation> enter_again(std::string_view name);
  /// Reserves the operation's name. False: it is in flight already.
  bool enter(const std::shared_ptr<Operation>& operation);
  /// The name is free again.
  void leave(const Operation& operation);
  /// "<prefix>.<k>" with the lowest k that is not in flight.
  std::string unnamed(std::string_view prefix) const;

  /// The operation that waits for `id` on this rank, and waits no longer; null if none.
  std::shared_ptr<Operation> take_waiting(Id id) {
    auto& operation = slot(id).waiting;
    return operation && operation->id == id ? std::move(operation) : nullptr;
  }
  std::shared_ptr<Operation> waiting(Id id) { return slot(id).waiting; }
  void set_waiting(Id id, std::shared_ptr<Operation> operation) {
    slot(id).waiting = std::move(operation);
  }
  /// The operation of this name that waits for other ranks, or null.
  std::shared_ptr<Operation> undecided(const std::string& name) const {
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || !entry->second.operation) return nullptr;
    const auto& operation = entry->second.operation;
    return operation->decided || operation->finished() ? nullptr : operation;
  }

  /// Decisions. assign returns the name's operation, null where this rank has none undecided.
  std::shared_ptr<Operation> assign(const std::string& name, Id id);
  /// The operation that was ready for the id and must be reported by name instead, or null.
  std::shared_ptr<Operation> retire(Id id);
  /// The undecided operation of this name, or null; it no longer waits for an id.
  std::shared_ptr<Operation> take_undecided(const std::string& name) {
    const auto operation = undecided(name);
    if (operation && operation->id) set_waiting(*operation->id, nullptr);
    return operation;
  }

  // For a rank that has joined: names that others submit.
  /// The name has this id and signature.
  void learn(const std::string& name, Id id, const Signature& signature);
  /// Null for an id that is not known.
  const Signature* signature_of(Id id) {
    const auto* const named = slot(id).named;
    return named && named->second.id == id ? &named->second.signature : nullptr;
  }

  std::vector<std::shared_ptr<Operation>> unfinished() const {
    std::vector<std::shared_ptr<Operation>> result = uncollected();
    std::erase_if(result, [](const auto& operation) { return operation->finished(); });
    return result;
  }
  /// Those that still have their names, finished or not: no call has got their errors.
  std::vector<std::shared_ptr<Operation>> uncollected() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Entries = std::unordered_map<std::string, NameEntry, Hash, std::equal_to<>>;
  struct Slot {
    Entries::value_type* named = nullptr;  ///< the entry whose id is of this slot
    std::shared_ptr<Operation> waiting;
  };
  Slot& slot(Id id) { return slots_[static_cast<std::size_t>(slot_of(id))]; }

  Entries entries_;
  std::vector<Slot> slots_;
};

/// Thread rule, beside each part. The *table* lock guards names and operations, briefly.
class Operations {
 public:
  /// Both outlive it. `aborted`: peers may still touch memory, so that none is freed.
  Operations(const SetMember& set, const std::atomic<bool>& aborted);

  const SetMember& set() const { return set_; }

  // Any thread.
  /// Copies data that peers cannot see to where they can, and announces it.
  std::shared_ptr<Operation> submit(Request&& request, Caller caller);
  /// Announces that this rank, which has nothing in flight, has no more data. The operation is
  /// finished when all ranks have joined; its number is the last one.
  std::shared_ptr<Operation> join();
  /// Copies the results of a finished operation out, or throws its error. Frees the name.
  void collect(Operation& operation);
  /// Releases a operation whose handle an exception has dropped.
  void detach(const std::shared_ptr<Operation>& operation);
  std::vector<std::shared_ptr<Operation>> unfinished() const {
    const LockGuard table(table_lock_);
    return table_.unfinished();
  }
  /// Operations, finished or not, whose handles have not been waited for.
  std::vector<std::shared_ptr<Operation>> uncollected() const;
  /// A name whose handle is open, if any.
  std::optional<std::string> open_name() const {
    const LockGuard table(table_lock_);
    const auto open = table_.uncollected();
    return open.empty() ? std::nullopt : std::optional(open.front()->name);
  }
  Statistics statistics() const {
    const LockGuard table(table_lock_);
    return statistics_;
  }
  /// No more can be submitted. The first cause stays.
  void close(const Error& error) {
    const LockGuard table(table_lock_);
    if (!closed_) closed_ = detached(error);
  }
  /// This rank has called shutdown(): close(), but it waits for peers though nothing is submitted.
  void depart(const Error& closed) {
    close(closed);
    undecided_.fetch_add(1);
    const LockGuard table(table_lock_);
    send(MailKind::departed);
  }
  /// Since when this rank waits in join() for others; none where it does not.
  std::optional<Duration> joined_since() const {
    if (!joined_.load()) return std::nullopt;
    const LockGuard table(table_lock_);
    const auto join = table_.undecided(std::string(kJoinName));
    return join ? std::optional(join->submitted) : std::nullopt;
  }
  bool wait_for_peers() const { return undecided_.load() > 0; }
  /// Tells the leader what waits too long for peers.
  void report_stalls(Duration time);
  /// timed_out() has nothing to do before; Duration::max() where it never has.
  Duration next_timeout() const { return Duration(next_timeout_.load(kWakeOrder)); }

  // The thread that makes progress.
  /// The first operation to have run out of time, or null; tells the leader which ones will soon.
  std::shared_ptr<Operation> timed_out(Duration time);
  /// The one that waits longest of those that a rank must log itself: decided and under way on the
  /// host for longer than HORA_STALL_WARNING, or overdue while the root is silent; or null.
  std::shared_ptr<Operation> stalled(Duration time) const;
  /// The root asks all ranks about this name.
  void note_answer(const std::string& name) {
    const LockGuard table(table_lock_);
    if (const auto operation = table_.undecided(name)) operation->answered = now();
  }
  /// Sends mail that has found the mailbox full; true if any went.
  bool flush_mail();
  /// There is such mail. Any thread.
  bool mail_waits() const { return mail_waits_.load(kWakeOrder); }
  /// The operation of this rank that waits for the id, for which it is ready.
  std::shared_ptr<Operation> waiting(Id id) {
    const LockGuard table(table_lock_);
    return table_.waiting(id);
  }
  /// Carries out what a decision says of names and ids; what runs is not undecided any more.
  /// Throws Error(transport) where this rank has not submitted what it is to run. `last`: for
  /// the timeline, of each of the ids that run; or none. Appends them to `decided`. `complete`:
  /// they do not run, and peers may go on to their next rounds.
  void take(const Decision& decision, std::span<const LastArrival> last,
            std::vector<std::shared_ptr<Operation>>& decided, bool complete = false);
  /// The ranks disagree on this name.
  void fail(const Failed& failed);
  void end_join(int last_joined);
  void finish(const std::shared_ptr<Operation>& operation, std::optional<Error> error,
              Duration time = now());
  /// Fails what waits for other ranks, and what is submitted from now on.
  void fail_undecided(const Error& error);
  /// Fails everything.
  void fail_all(const Error& error);

 private:
  /// Before it is announced.
  void record(Operation& operation) const;
  /// It is submitted now; `timeout`: of its call. True where sleeping threads must look again.
  bool set_deadlines(Operation& operation, std::chrono::milliseconds timeout)
      HORA_REQUIRES(table_lock_);

  std::shared_ptr<Operation> enter(Request& request) HORA_REQUIRES(table_lock_);
  // How peers learn of operations: known ids by ready bits, all else, and all where a rank of the
  // node has joined, by mail to the node's leader; wakes the ranks that must see it.
  void announce(const std::shared_ptr<Operation>& operation) HORA_REQUIRES(table_lock_);
  void report(const Operation& operation) HORA_REQUIRES(table_lock_);
  void send(const Mail& mail) HORA_REQUIRES(table_lock_);
  void send(MailKind kind, std::string name = {}) HORA_REQUIRES(table_lock_) {
    send({.kind = kind, .name = std::move(name)});
  }
  /// The undecided operation of this name, which waits for others no longer; null if none.
  std::shared_ptr<Operation> take_undecided(const std::string& name);
  /// By which a rank that has joined takes part in what is decided, without data.
  std::shared_ptr<Operation> make_proxy(Id id, const Signature& signature);
  void check_open() const HORA_REQUIRES(table_lock_);
  void release(Operation& operation);

  const SetMember& set_;
  const std::atomic<bool>& aborted_;
  std::uint64_t decided_ = 0;  ///< operations, by the thread that makes progress
  NodeControlBlock& control_block_;
  RankStatus& status_;             ///< of this rank
  std::atomic<int> undecided_{0};  ///< this rank's operations that wait for others
  std::atomic<bool> joined_{false};
  const Duration stall_warning_;  ///< zero: nothing is overdue
  const int report_order_;        ///< see TimeLimit::end
  // When something is due next, never later; max(): never. Written under the table lock.
  std::atomic<Duration::rep> next_timeout_{Duration::max().count()};  ///< in kWakeOrder
  std::atomic<Duration::rep> next_overdue_{Duration::max().count()};

  mutable BriefMutex table_lock_;
  NameTable table_ HORA_GUARDED_BY(table_lock_);
  /// Mail that found the mailbox full.
  std::deque<std::vector<std::byte>> outbox_ HORA_GUARDED_BY(table_lock_);
  std::atomic<bool> mail_waits_{false};                       ///< the outbox is not empty
  std::optional<Error> closed_ HORA_GUARDED_BY(table_lock_);  ///< why nothing more can be submitted
  /// Results of exchanges that were under way when all failed: not freed, as peers may write there.
  std::vector<std::shared_ptr<ExchangeResult>> retained_on_failure_ HORA_GUARDED_BY(table_lock_);
  Statistics statistics_ HORA_GUARDED_BY(table_lock_);
};

}  // namespace hora::internal
