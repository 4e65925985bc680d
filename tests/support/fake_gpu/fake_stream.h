/// A stream: a thread that runs what was enqueued, in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace hora::internal::test {

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

}  // namespace hora::internal::test
