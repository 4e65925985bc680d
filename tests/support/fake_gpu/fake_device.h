/// The CUDA part of a fake GPU: calls, streams, events, memory, pools.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ops/cuda/functions.h"

namespace hora::internal::test {

struct FakeGpuOptions {
  std::uint64_t seed = 0;
  /// Each item of work on a stream starts after a random time up to this.
  std::chrono::microseconds longest_delay{0};
  int peers = 0;  ///< other GPUs that the same process sees, after this one
  /// An abort by this rank makes its peers' communicators report ncclRemoteError, as it does where
  /// a network connects them; in a node they are told nothing.
  bool peers_notice_aborts = false;
  bool has_windows = true;  ///< false: the calls of NCCL 2.27 are missing
};

/// Counts of handles made and not given back.
struct LiveHandles {
  int streams = 0;
  int events = 0;
  int pinned = 0;  ///< blocks of host memory
  int device = 0;  ///< blocks of device memory, ncclMemAlloc's too
  int communicators = 0;
  int registrations = 0;
  int windows = 0;
  int pools = 0;  ///< of memory
  bool operator==(const LiveHandles&) const = default;
};

/// A name that was not announced is std::out_of_range. Thread rule: any thread.
class CallScript {
 public:
  /// Announces a call.
  void add(const std::string& call) {
    const std::scoped_lock lock(mutex_);
    entries_[call];
  }
  /// Counts a call; the error it shall end with, 0 for none.
  int begin(const std::string& call) {
    const std::scoped_lock lock(mutex_);
    Entry& called = entries_.at(call);
    const auto found = called.errors.find(++called.count);
    return found != called.errors.end() ? found->second : called.always;
  }
  int count(const std::string& call) const {
    const std::scoped_lock lock(mutex_);
    return entries_.at(call).count;
  }
  void fail(const std::string& call, int nth, int error) {
    const std::scoped_lock lock(mutex_);
    Entry& scripted = entries_.at(call);
    (nth == 0 ? scripted.always : scripted.errors[scripted.count + nth]) = error;
  }

 private:
  struct Entry {
    int count = 0;
    std::map<int, int> errors;  ///< by number of the call
    int always = 0;             ///< the error of every call
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

enum class MemoryKind { pinned, device, ordered, nccl };

/// Memory that work, from the call on until it is done, may touch.
using MemoryUse = std::vector<std::shared_ptr<void>>;
using MemoryRange = std::pair<const void*, std::size_t>;

/// Thread rule: any thread.
class FakeMemory {
 public:
  FakeMemory() = default;
  ~FakeMemory();
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;

  /// Aligned to 256 bytes, as CUDA's, and filled with a pattern, for CUDA does not clear either.
  void* allocate(MemoryKind kind, std::size_t bytes);
  /// False where `data` is not the beginning of such a block.
  bool release(MemoryKind kind, void* data);

  /// Whether all of each range lies in one block; device memory includes NCCL's.
  bool on_device(const std::vector<MemoryRange>& ranges) const { return are(false, ranges); }
  bool pinned(const std::vector<MemoryRange>& ranges) const { return are(true, ranges); }
  /// Whether a block of this kind begins there, and has as many bytes at least.
  bool is_block(MemoryKind kind, const void* data, std::size_t bytes) const;
  void count(LiveHandles& live) const;
  /// Use of the blocks that the ranges lie in.
  MemoryUse use(const std::vector<MemoryRange>& ranges) const;
  /// Some work may still touch the block that begins there.
  bool in_use(const void* data) const;

 private:
  struct Block {
    MemoryKind kind;
    std::size_t bytes;
    std::shared_ptr<void> users = std::make_shared<int>();  ///< held by each, and here
  };
  const Block* find(const void* data, std::size_t bytes) const;
  bool are(bool pinned, const std::vector<MemoryRange>& ranges) const;

  mutable std::mutex mutex_;
  std::map<const std::byte*, Block, std::greater<>> blocks_;
};

/// Shared by the streams and events of one device. `mutex` guards all of it; whoever waits holds it
/// once.
struct StreamsState {
  std::recursive_mutex mutex;
  std::condition_variable_any changed;
  bool stopping = false;  ///< ends all waiting; work that has not begun is dropped
  bool held = false;      ///< no further work begins
};

/// Thread rule: any thread.
class FakeStream {
 public:
  explicit FakeStream(StreamsState& state) : state_(state), thread_([this] { run(); }) {}
  /// Joins: after `stopping`, or once retired and drained.
  ~FakeStream() { thread_.join(); }

  void enqueue(std::function<void()> work);
  /// The thread ends after what is enqueued.
  void retire();
  /// Blocks until what is enqueued now is done, or the device stops.
  void synchronize();

 private:
  void run();

  StreamsState& state_;
  std::deque<std::function<void()>> work_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t done_ = 0;
  bool retired_ = false;
  std::thread thread_;
};

/// `number` is unique in its world and part of every handle; handles are never used again, so that
/// stale and foreign ones are found. Thread rule: any thread.
class FakeDevice {
 public:
  FakeDevice(int number, const FakeGpuOptions& options);
  ~FakeDevice() { stop(); }

  /// Ends all waiting inside of this device, and its threads.
  void stop();
  void hold(bool held);
  void delay(std::chrono::microseconds least);

  CallScript& script() { return script_; }
  const CallScript& script() const { return script_; }
  FakeMemory& memory() { return memory_; }
  const FakeMemory& memory() const { return memory_; }
  int number() const { return number_; }

  cudaError_t violation(const std::string& text, cudaError_t error = cudaErrorInvalidValue);
  /// A violation by work that runs: every later call fails, as after an illegal address in CUDA.
  cudaError_t fault(const std::string& text);
  cudaError_t faulted() const { return copy_of(fault_); }
  std::vector<std::string> violations() const { return copy_of(violations_); }
  /// Indices of the GPUs on which this process has made a context.
  std::set<int> contexts() const { return copy_of(contexts_); }
  /// Bytes that each pool keeps when the device synchronises; CUDA's default is 0.
  std::map<cudaMemPool_t, std::uint64_t> pools() const { return copy_of(pools_); }
  LiveHandles live() const;

  /// Counts the call; what the script, an earlier fault, or a capture makes of it.
  cudaError_t begin(const std::string& call);
  /// Remembers the calling thread's last error.
  cudaError_t end(cudaError_t result);
  cudaError_t take_last_error();

  /// Whether the calling thread has a current GPU. GPU k of a world has index k.
  bool has_current();
  /// As nearly every call of CUDA: the first GPU becomes the thread's current one where it has
  /// none, for which a context is made there.
  void touch();
  /// False, and a violation, where another GPU is the thread's current one.
  bool is_current(const std::string& what);
  cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(cudaStream_t stream);

  // As the members of CudaFunctions.
  cudaError_t get_device(int* index);  ///< the first one where the thread has none
  cudaError_t set_device(int index);
  cudaError_t get_device_count(int* count);
  cudaError_t get_device_properties(cudaDeviceProp* properties, int index);
  /// "0000:01:00.0", unique in its world.
  cudaError_t device_get_pci_bus_id(char* id, int length, int index);
  cudaError_t device_synchronize();
  cudaError_t stream_create(cudaStream_t* stream, unsigned flags, int priority);
  cudaError_t stream_destroy(cudaStream_t stream);
  cudaError_t stream_synchronize(cudaStream_t stream);
  cudaError_t stream_wait_event(cudaStream_t stream, cudaEvent_t event, unsigned flags);
  cudaError_t stream_is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
  cudaError_t exchange_capture_mode(cudaStreamCaptureMode* mode);
  cudaError_t event_create(cudaEvent_t* event, unsigned flags);
  cudaError_t event_destroy(cudaEvent_t event);
  cudaError_t event_record(cudaEvent_t event, cudaStream_t stream);
  cudaError_t event_query(cudaEvent_t event);
  cudaError_t event_synchronize(cudaEvent_t event);
  cudaError_t event_elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
  cudaError_t mem_pool_create(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
  cudaError_t mem_pool_destroy(cudaMemPool_t pool);
  cudaError_t mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
  cudaError_t mem_pool_trim_to(cudaMemPool_t pool, std::size_t kept);
  cudaError_t malloc_from_pool_async(void** data, std::size_t bytes, cudaMemPool_t pool,
                                     cudaStream_t stream);
  cudaError_t free_async(void* data, cudaStream_t stream);
  /// Waits for all streams, as cudaFree and cudaFreeHost do.
  void synchronize_all();

  /// `use`: what it works on.
  cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, MemoryUse use = {});
  std::chrono::microseconds random_delay();
  bool knows(cudaStream_t stream) { return find(stream) != nullptr; }
  /// The next handle's value.
  std::uintptr_t next_handle();

 private:
  using Lock = std::unique_lock<std::recursive_mutex>;
  struct Record {
    bool done = false;
    std::chrono::steady_clock::time_point time;
  };
  struct Capture {
    cudaStreamCaptureMode mode;
    std::uint64_t thread;
    int streams = 1;
    bool is_valid = true;
  };
  struct FakeEvent {
    bool timing = false;
    std::shared_ptr<Record> latest = nullptr;    ///< null where nothing was recorded
    std::shared_ptr<Capture> capture = nullptr;  ///< where the last record is part of one
  };
  struct ThreadState {
    std::optional<int> current;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    cudaError_t last_error = cudaSuccess;
  };
  template <class T>
  T copy_of(const T& member) const {
    const Lock lock(state_.mutex);
    return member;
  }
  ThreadState& own_thread();  // with the mutex held
  std::shared_ptr<Capture> capture_of(cudaStream_t stream) const;
  /// Makes the captures invalid for which `forbids` is true: an error where there are any. Nothing
  /// runs of streams that are captured.
  template <class Forbids>
  cudaError_t invalidate_captures(const Forbids& forbids);
  cudaError_t wait_while_capturing(const std::string& call);
  std::shared_ptr<FakeStream> find(cudaStream_t stream);
  /// Null, and a violation, where it is none of this device. With the mutex held.
  FakeEvent* find(cudaEvent_t event);
  /// Gives what a wait for it waits for, null for nothing, and ends a capture that it is part of.
  cudaError_t to_wait_for(cudaEvent_t event, std::shared_ptr<Record>& record);
  void wait(const std::shared_ptr<Record>& record);
  /// Whether there is such a pool; a violation where there is none.
  cudaError_t of_pool(cudaMemPool_t pool);
  void pause(std::chrono::microseconds least);

  const int number_;
  const FakeGpuOptions options_;
  CallScript script_;
  FakeMemory memory_;
  mutable StreamsState state_;
  std::chrono::microseconds delay_{0};
  std::mt19937_64 generator_;
  std::uintptr_t handles_ = 0;
  std::map<cudaStream_t, std::shared_ptr<FakeStream>> streams_;  ///< nullptr: the null stream
  std::vector<std::shared_ptr<FakeStream>> retired_;
  std::map<cudaEvent_t, FakeEvent> events_;
  std::map<cudaMemPool_t, std::uint64_t> pools_;  ///< and the bytes that each keeps
  std::map<std::uint64_t, ThreadState> threads_;
  std::set<int> contexts_;
  std::map<cudaStream_t, std::shared_ptr<Capture>> captures_;
  std::vector<std::string> violations_;
  cudaError_t fault_ = cudaSuccess;
};

/// Number of the calling thread; the system gives a thread's id to another one once it has ended.
std::uint64_t thread_number();

/// The table whose calls go to `device`; announces them to its script.
CudaFunctions cuda_functions(FakeDevice& device);

}  // namespace hora::internal::test
