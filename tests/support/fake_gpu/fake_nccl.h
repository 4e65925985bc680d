/// The NCCL part of a fake GPU: collectives, where the communicators of all fake GPUs meet, and the
/// calls of one GPU.
#pragma once

#include <hora/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/nccl/functions.h"
#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, recv };

/// The name of the member of NcclFunctions.
const char* name_of(CollectiveKind kind);

/// One rank's part.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  ///< as the call's argument: per rank for reduce_scatter and all_gather
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  ///< of send and recv: the peer
  int rank = 0;
  int ranks = 1;
  std::string windows = {};  ///< where its memory lies, if in any (FakeNccl::windows_of)

  std::size_t send_bytes() const;
  std::size_t receive_bytes() const;
  /// Between two ranks alone.
  bool is_transfer() const { return kind == CollectiveKind::send || kind == CollectiveKind::recv; }
  /// "all_reduce of 5 float32, sum".
  std::string text() const;
};

std::optional<DataType> from_nccl(ncclDataType_t type);
std::optional<ReduceOp> from_nccl(ncclRedOp_t op);

/// Says how ranks disagree; empty where they do not. Parts by rank.
std::string disagreement(std::span<const Collective> parts);

/// Reduces in rank order, rounded as hora::reduce does (also where a NaN is among minima and
/// maxima, which NCCL leaves out).
void perform(std::span<const Collective> parts);

struct NcclCommunicatorState;

/// One collective of a communicator: runs once all ranks have come.
struct NcclMeeting {
  explicit NcclMeeting(int ranks) : parts(static_cast<std::size_t>(ranks)) {}
  std::vector<std::optional<Collective>> parts;
  int arrived = 0;
  bool computing = false;  ///< the last arriver works on all ranks' memory: none may leave
  bool done = false;
};

/// One rank's message to another; its memory stays until it is taken.
struct NcclParcel {
  Collective part;
  bool taken = false;
};

struct NcclWindow {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t number = 0;  ///< of the window among all of its communicator
};

/// Shared by the ranks of one communicator.
struct NcclClique {
  explicit NcclClique(int size) : members(static_cast<std::size_t>(size)) {}
  std::vector<std::weak_ptr<NcclCommunicatorState>> members;
  std::map<std::uint64_t, std::shared_ptr<NcclMeeting>> meetings;  ///< by number
  /// By number: how each rank that has come makes the window, which there is once all have.
  std::map<std::uint64_t, std::vector<std::string>> registrations;
  /// By sender and receiver, in their order.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<NcclParcel>>> parcels;
  int joined = 0;
  int finalizing = 0;
  bool broken = false;  ///< a rank has left before the initialisation was complete
  int size() const { return static_cast<int>(members.size()); }
};

/// Collectives that are not on their streams yet: another thread puts them there, once it may.
struct NcclJob {
  std::function<bool()> may_launch;
  std::function<void()> launch;
};

/// One rank's communicator. All fields are guarded by NcclWorld::mutex.
struct NcclCommunicatorState {
  std::shared_ptr<NcclClique> clique;
  int rank = 0;
  bool initialised = false;
  int initialisation_polls = 3;  ///< it is ready at this one after all ranks have come
  ncclResult_t initialisation_error = ncclSuccess;
  ncclResult_t error = ncclSuccess;
  std::string last_error;
  std::shared_ptr<NcclJob> job;
  bool finalizing = false;
  bool finalized = false;
  bool aborted = false;
  std::uint64_t enqueued = 0;  ///< the number of the next collective
  std::uint64_t done = 0;
  std::uint64_t transfers_enqueued = 0;  ///< groups of sends and receives, which run in order
  std::uint64_t transfers_done = 0;
  void fail(ncclResult_t result, std::string text) {
    error = result;
    last_error = std::move(text);
  }
  bool in_flight() const { return done != enqueued || transfers_done != transfers_enqueued || job; }
  int inside = 0;                             ///< streams that are in a collective
  std::map<void*, NcclWindow> registrations;  ///< by handle
  std::map<void*, NcclWindow> windows;        ///< by handle
  std::uint64_t registered = 0;               ///< windows that there ever were
};

/// Thread rule: any thread; `mutex` is taken before any of a device.
class NcclWorld {
 public:
  int next_gpu();
  ncclUniqueId next_id();
  std::vector<std::string> errors() const;

  /// On a stream's thread: meets the other ranks. Ends early where this rank's communicator is
  /// aborted. `check` says what is wrong with this rank's memory, empty for nothing.
  void run(NcclCommunicatorState& comm, std::uint64_t number, const Collective& part,
           const std::function<std::string()>& check);
  /// Runs the sends and receives of one group, which go on side by side.
  void transfer(NcclCommunicatorState& comm, std::uint64_t number,
                const std::vector<Collective>& parts, const std::function<std::string()>& check);
  /// Waits until this rank's streams are out of all collectives.
  void abort(NcclCommunicatorState& comm);
  /// The other ranks' communicators report that this one has gone.
  void tell_peers(const NcclCommunicatorState& comm);
  // With the mutex held:
  void error(std::string text) { errors_.push_back(std::move(text)); }
  /// All ranks' communicators report this.
  void fail(NcclClique& clique, const std::string& text);

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, std::shared_ptr<NcclClique>> cliques;  ///< by unique id

 private:
  void meet(std::unique_lock<std::mutex>& lock, NcclCommunicatorState& comm, std::uint64_t number,
            const Collective& part, const std::string& wrong);
  void complete(std::unique_lock<std::mutex>& lock, NcclClique& clique, NcclMeeting& meeting,
                std::uint64_t number, std::string wrong);

  void take(std::unique_lock<std::mutex>& lock, NcclCommunicatorState& comm,
            const Collective& part);

  int gpus_ = 0;
  std::uint64_t ids_ = 0;
  std::vector<std::string> errors_;
};

std::uint64_t value_of(const ncclUniqueId& id);

/// Thread rule: any thread, one at a time (which is checked), but for the destructor, stop() and
/// what the test calls.
class FakeNccl {
 public:
  FakeNccl(std::shared_ptr<NcclWorld> world, FakeDevice& device, const FakeGpuOptions& options);
  ~FakeNccl() { stop(); }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  /// Ends all collectives of this GPU, and its thread.
  void stop();

  CallScript& script() { return script_; }
  const CallScript& script() const { return script_; }
  NcclWorld& world() { return *world_; }
  FakeDevice& device() { return device_; }

  /// Counts the call; what the script makes of it.
  ncclResult_t begin(const std::string& call);
  /// False, and an error of the world, where another thread is inside.
  bool enter();
  void leave() { --inside_; }

  ncclResult_t initialise(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank,
                          const ncclConfig_t* config);
  ncclResult_t poll(ncclComm_t comm, ncclResult_t* state);
  ncclResult_t finalize(ncclComm_t comm);
  /// Destroys or aborts. In a group of the calling thread that is open an abort ends the
  /// collectives, but frees nothing before the group ends.
  ncclResult_t release(ncclComm_t comm, bool abort);
  ncclResult_t destroy(ncclComm_t comm) { return release(comm, false); }
  ncclResult_t abort(ncclComm_t comm) { return release(comm, true); }
  ncclResult_t add_registration(ncclComm_t comm, void* data, std::size_t bytes, void** handle);
  ncclResult_t remove_registration(ncclComm_t comm, void* handle);
  // `scripted`: what the script says that it ends with.
  ncclResult_t register_window(ncclResult_t scripted, ncclComm_t comm, void* data,
                               std::size_t bytes, void** window, int flags);
  ncclResult_t remove_window(ncclComm_t comm, void* window);
  ncclResult_t free(void* data);
  const char* last_error(ncclComm_t comm);

  ncclResult_t start_group();
  ncclResult_t end_group(ncclResult_t scripted);
  ncclResult_t collective(ncclResult_t scripted, CollectiveKind kind, const void* send,
                          void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                          int root, ncclComm_t comm, cudaStream_t stream);

  void async_error(ncclResult_t error);  ///< of all communicators
  /// Groups that have ended are put on no stream until it is false again.
  void hold_launches(bool held);
  void count(LiveHandles& live) const;
  /// False: as before NCCL 2.27.
  bool has_windows() const { return options_.has_windows; }

 private:
  using Comm = std::shared_ptr<NcclCommunicatorState>;
  struct Operation {
    Comm comm;
    Collective part;
    cudaStream_t stream;
    MemoryUse use;
  };
  struct Window {
    Comm comm;
    void* data;
    std::size_t bytes;
    void** handle;
    std::uint64_t number = 0;
    ncclResult_t error = ncclSuccess;  ///< this rank stays away
  };
  struct Group {
    int depth = 0;
    std::vector<Operation> operations;
    std::vector<Window> windows;
    std::vector<ncclComm_t> aborted;
    ncclResult_t error = ncclSuccess;
  };
  // All with the world's mutex held.
  Comm find(ncclComm_t comm) const;
  ncclResult_t unusable(const Comm& comm);
  ncclResult_t wrong(const Comm& comm, std::string text);
  ncclResult_t validate(const Comm& comm, Collective& part, ncclDataType_t type, ncclRedOp_t op,
                        cudaStream_t stream);
  /// At the end of the calling thread's group, if one is open, or now; nothing after an error.
  ncclResult_t add(ncclResult_t result, std::vector<Operation> operations,
                   std::vector<Window> windows);
  ncclResult_t launch(std::vector<Operation> operations, std::vector<Window> windows);
  void begin_window(Window& window);
  static bool is_met(const Window& window);
  void end_window(const Window& window);
  static std::string windows_of(const NcclCommunicatorState& comm, const Collective& part);
  void enqueue(std::vector<Operation> operations);
  void enqueue(Operation operation);
  void enqueue_transfers(std::vector<Operation> operations);
  void run_launches();
  void advance(NcclCommunicatorState& comm);
  std::string memory_fault(const Collective& part);
  /// The same as the device's fault: the work has begun.
  std::string fault_of(const std::vector<Collective>& parts);

  const std::shared_ptr<NcclWorld> world_;
  FakeDevice& device_;
  const FakeGpuOptions options_;
  CallScript script_;
  std::atomic<int> inside_{0};
  std::map<ncclComm_t, Comm> comms_;
  std::map<std::uint64_t, Group> groups_;  ///< by thread
  std::vector<std::shared_ptr<NcclJob>> jobs_;
  bool launches_held_ = false;
  bool stopping_ = false;
  std::string last_error_;
  std::latch has_context_{1};  ///< the launching thread
  std::thread launching_;
};

/// The table whose calls go to `nccl`.
NcclFunctions nccl_functions(FakeNccl& nccl);

}  // namespace hora::internal::test
