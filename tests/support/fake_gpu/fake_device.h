/// The CUDA part of a fake GPU: calls, streams, events, memory, pools.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
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
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal::test {

/// A name that was not announced is std::invalid_argument. Thread rule: any thread.
class CallScript {
 public:
  explicit CallScript(std::initializer_list<std::string_view> calls);

  /// Counts a call; the error it shall end with, 0 for none.
  int begin(std::string_view call);
  int count(std::string_view call) const;
  void fail(std::string_view call, int nth, int error);
  void delay(std::string_view call, std::chrono::microseconds duration);
  std::chrono::microseconds delay_of(std::string_view call) const;
  bool knows(std::string_view call) const { return entries_.contains(call); }

 private:
  struct Entry {
    int count = 0;
    std::map<int, int> errors;  ///< by number of the call
    int always = 0;             ///< the error of every call
    std::chrono::microseconds delay{0};
  };
  Entry& entry(std::string_view call);
  const Entry& entry(std::string_view call) const;

  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
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

  /// Whether all of [data, data + bytes) lies in one block; device memory includes NCCL's.
  bool on_device(const void* data, std::size_t bytes) const;
  bool pinned(const void* data, std::size_t bytes) const;
  /// Whether a block of this kind begins there, and has as many bytes at least.
  bool is_block(MemoryKind kind, const void* data, std::size_t bytes) const;
  int blocks(MemoryKind kind) const;
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

  mutable std::mutex mutex_;
  std::map<const std::byte*, Block, std::greater<>> blocks_;
};

/// Thread rule: any thread.
class FakePools {
 public:
  void add(cudaMemPool_t pool);
  /// The others: false where there is no such pool.
  bool remove(cudaMemPool_t pool);
  bool keep(cudaMemPool_t pool, std::uint64_t bytes);
  bool knows(cudaMemPool_t pool) const;

  /// Bytes that each keeps when the device synchronises; CUDA's default is 0.
  std::vector<std::uint64_t> kept() const;

 private:
  mutable std::mutex mutex_;
  std::map<cudaMemPool_t, std::uint64_t> kept_;
};

/// Shared by the streams and events of one device. `mutex` guards all of it.
struct StreamsState {
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;  ///< ends all waiting; work that has not begun is dropped
  bool held = false;      ///< no further work begins
};

/// Thread rule: any thread.
class FakeStream {
 public:
  explicit FakeStream(StreamsState& state);
  /// Joins: after `stopping`, or once retired and drained.
  ~FakeStream();

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

  CallScript& script() { return script_; }
  FakeMemory& memory() { return memory_; }
  FakePools& pools() { return pools_; }
  int number() const { return number_; }
  /// "0000:01:00.0", unique in its world.
  std::string bus_id() const;
  int peers() const { return options_.peers; }

  void violation(std::string text);
  /// A violation by work that runs: every later call fails, as after an illegal address in CUDA.
  void fault(std::string text);
  std::vector<std::string> violations() const;

  /// Counts the call; what the script, an earlier fault, or a capture makes of it.
  cudaError_t begin(std::string_view call);
  /// Remembers the calling thread's last error.
  cudaError_t end(cudaError_t result);
  cudaError_t take_last_error();

  // fake_threads.cpp: what each thread has as its current GPU.

  /// GPU k of a world has index k.
  int index() const { return number_; }
  /// The calling thread's current GPU: the first one where it has none.
  int current();
  /// Whether it has one.
  bool has_current();
  cudaError_t choose(int index);
  /// As nearly every call of CUDA: the first GPU becomes the thread's current one where it has
  /// none, for which a context is made there.
  void touch();
  /// False, and a violation, where another GPU is the thread's current one.
  bool is_current(std::string_view what);
  /// Indices of the GPUs on which this process has made a context.
  std::vector<int> contexts() const;

  // fake_captures.cpp: of streams that are captured, nothing runs.

  cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(cudaStream_t stream);
  cudaError_t is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
  void exchange_capture_mode(cudaStreamCaptureMode* mode);
  /// Effect of a call that may wait on the captures of this process.
  cudaError_t wait_while_capturing(std::string_view call);

  cudaError_t synchronize_device();
  cudaError_t create_stream(cudaStream_t* stream);
  cudaError_t destroy_stream(cudaStream_t stream);
  cudaError_t synchronize_stream(cudaStream_t stream);
  cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event);
  cudaError_t create_event(cudaEvent_t* event, bool timing);
  cudaError_t destroy_event(cudaEvent_t event);
  cudaError_t record_event(cudaEvent_t event, cudaStream_t stream);
  cudaError_t query_event(cudaEvent_t event);
  cudaError_t synchronize_event(cudaEvent_t event);
  cudaError_t elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
  /// Waits for all streams, as cudaFree and cudaFreeHost do.
  void synchronize_all();

  /// `delay`: at least so long, and the random delay of the options. `use`: what it works on.
  cudaError_t enqueue(cudaStream_t stream, std::chrono::microseconds delay,
                      std::function<void()> work, MemoryUse use = {});
  std::chrono::microseconds random_delay();
  bool knows(cudaStream_t stream);

  int streams() const;
  int events() const;
  /// Ever created with a time stamp.
  int timing_events() const;
  /// The next handle's value.
  std::uintptr_t next_handle();

 private:
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
  // With the mutex held.
  ThreadState& own_thread();
  std::shared_ptr<Capture> capture_of(cudaStream_t stream) const;
  void invalidate_all();
  bool is_captured(cudaEvent_t event);
  std::shared_ptr<FakeStream> find(cudaStream_t stream);
  /// Null where nothing was recorded. False: not an event of this device.
  bool latest(cudaEvent_t event, std::shared_ptr<Record>& record);
  void wait(const std::shared_ptr<Record>& record);
  void pause(std::chrono::microseconds delay);

  const int number_;
  const FakeGpuOptions options_;
  CallScript script_;
  FakeMemory memory_;
  FakePools pools_;
  mutable StreamsState state_;
  std::mt19937_64 generator_;
  std::uintptr_t handles_ = 0;
  std::map<cudaStream_t, std::shared_ptr<FakeStream>> streams_;  ///< nullptr: the null stream
  std::vector<std::shared_ptr<FakeStream>> retired_;
  std::map<cudaEvent_t, FakeEvent> events_;
  int timing_events_ = 0;
  std::map<std::uint64_t, ThreadState> threads_;
  std::set<int> contexts_;
  std::map<cudaStream_t, std::shared_ptr<Capture>> captures_;
  std::vector<std::string> violations_;
  bool faulted_ = false;
};

/// Number of the calling thread; the system gives a thread's id to another one once it has ended.
std::uint64_t thread_number();

/// The table whose calls go to `device`.
CudaFunctions cuda_functions(FakeDevice& device);

}  // namespace hora::internal::test
