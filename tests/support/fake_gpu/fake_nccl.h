/// The NCCL part of a fake GPU.
#pragma once

#include <atomic>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_gpu/fake_device.h"
#include "tests/support/fake_gpu/nccl_world.h"

namespace hora::internal::test {

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
  ncclResult_t begin(std::string_view call);
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
  ncclResult_t register_window(ncclComm_t comm, void* data, std::size_t bytes, void** window,
                               ncclResult_t scripted);
  ncclResult_t remove_window(ncclComm_t comm, void* window);
  ncclResult_t free(void* data);
  const char* last_error(ncclComm_t comm);

  ncclResult_t start_group();
  ncclResult_t end_group(ncclResult_t scripted);
  ncclResult_t collective(ncclComm_t comm, Collective part, ncclDataType_t type, ncclRedOp_t op,
                          cudaStream_t stream, ncclResult_t scripted);

  void async_error(ncclComm_t comm, ncclResult_t error);  ///< null: all communicators
  /// Groups that have ended are put on no stream until it is false again.
  void hold_launches(bool held);
  int communicators() const;
  int registrations() const;
  int windows() const;
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
  struct WindowTask {
    Comm comm;
    void* data;
    std::size_t bytes;
    void** window;
  };
  struct Registering {
    WindowTask task;
    std::shared_ptr<NcclRegistrationMeeting> meeting;  ///< null: it fails
    std::uint64_t number;
    ncclResult_t error;
  };
  struct Group {
    int depth = 0;
    std::vector<Operation> operations;
    std::vector<WindowTask> windows;
    std::vector<ncclComm_t> aborted;
    ncclResult_t error = ncclSuccess;
  };
  // All with the world's mutex held.
  Comm find(ncclComm_t comm) const;
  ncclResult_t unusable(NcclCommunicatorState& comm);
  ncclResult_t wrong(const Comm& comm, std::string text);
  ncclResult_t validate(const Comm& comm, Collective& part, ncclDataType_t type, ncclRedOp_t op,
                        cudaStream_t stream);
  ncclResult_t launch(std::vector<Operation> operations, const std::vector<WindowTask>& windows);
  Registering begin_window(const WindowTask& task);
  static bool is_met(const Registering& window);
  void end_window(const Registering& window);
  static std::string windows_of(const NcclCommunicatorState& comm, const Collective& part);
  void enqueue(std::vector<Operation> operations);
  void enqueue(Operation operation);
  void enqueue_transfers(std::vector<Operation> operations);
  void run_launches();
  void advance(NcclCommunicatorState& comm);
  std::string memory_fault(const Collective& part);

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
