/// Where the communicators of all fake GPUs meet.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fake_gpu/collective.h"

namespace hora::internal::test {

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

/// One rank's part in making a window of symmetric memory.
struct NcclRegistration {
  std::size_t bytes = 0;
  std::uint64_t collectives = 0;           ///< that this rank has enqueued before
  std::vector<std::uint64_t> others = {};  ///< the windows that it has
};

/// A window comes to be once all ranks have come.
struct NcclRegistrationMeeting {
  std::vector<NcclRegistration> parts;
};

struct NcclWindow {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t number = 0;  ///< of the registration
};

/// Shared by the ranks of one communicator.
struct NcclClique {
  explicit NcclClique(int size) : members(static_cast<std::size_t>(size)) {}
  std::vector<std::weak_ptr<NcclCommunicatorState>> members;
  std::map<std::uint64_t, std::shared_ptr<NcclMeeting>> meetings;                   ///< by number
  std::map<std::uint64_t, std::shared_ptr<NcclRegistrationMeeting>> registrations;  ///< likewise
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
  bool blocking = false;
  bool initialised = false;
  int initialisation_polls = 0;
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
  bool in_flight() const { return done != enqueued || transfers_done != transfers_enqueued || job; }
  int inside = 0;                        ///< streams that are in a collective
  std::map<void*, void*> registrations;  ///< memory by handle
  std::map<void*, NcclWindow> windows;   ///< by handle
  std::uint64_t registered = 0;          ///< windows that there ever were
};

/// Thread rule: any thread; `mutex` is taken before any of a device.
class NcclWorld {
 public:
  int next_gpu();
  ncclUniqueId next_id();
  std::vector<std::string> errors() const;
  void error(std::string text);  // takes the mutex

  /// On a stream's thread: meets the other ranks. Ends early where this rank's communicator is
  /// aborted. `check` says what is wrong with this rank's memory, empty for nothing.
  void run(NcclCommunicatorState& comm, std::uint64_t number, const Collective& part,
           const std::function<std::string()>& check);
  /// Likewise the sends and receives of one group, which go on side by side.
  void transfer(NcclCommunicatorState& comm, std::uint64_t number,
                const std::vector<Collective>& parts, const std::function<std::string()>& check);
  /// Waits until this rank's streams are out of all collectives.
  void abort(NcclCommunicatorState& comm);
  /// The other ranks' communicators report that this one has gone.
  void tell_peers(const NcclCommunicatorState& comm);
  /// All ranks' communicators report this; with the mutex held.
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

}  // namespace hora::internal::test
