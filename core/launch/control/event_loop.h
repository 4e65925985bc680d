/// The owner of a file descriptor; and a loop that waits for descriptors, signals and times, and
/// calls what is registered for them.
/// Thread rule: one thread.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace hora::launch {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  explicit UniqueFd(int descriptor) noexcept : descriptor_(descriptor) {}
  UniqueFd(UniqueFd&& other) noexcept : descriptor_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  int release() noexcept { return std::exchange(descriptor_, -1); }
  void reset(int descriptor = -1) noexcept {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = descriptor;
  }

 private:
  int descriptor_ = -1;
};

using Clock = std::chrono::steady_clock;

/// Nanoseconds since 1970, to compare with those of other hosts.
std::int64_t wall_clock_ns() noexcept;

class EventLoop {
 public:
  /// `on_event` gets poll()'s events. It may add and remove descriptors, this one included.
  void watch(int descriptor, short events, std::function<void(short)> on_event);
  void change(int descriptor, short events);
  void forget(int descriptor);

  /// Called at least this often, and after each turn.
  void each(std::chrono::milliseconds interval, std::function<void()> on_time);

  /// Until stop(), which may come before it: then at once.
  void run();
  void stop() noexcept { stopping_ = true; }

 private:
  struct Watch {
    short events;
    std::function<void(short)> on_event;
  };
  void turn();

  std::map<int, Watch> watches_;
  std::chrono::milliseconds interval_{1000};
  std::function<void()> on_time_;
  bool stopping_ = false;
};

/// Signals as a descriptor: those given are blocked for this process from now on, and read from it
/// (struct signalfd_siginfo). Throws std::system_error.
UniqueFd signals_as_descriptor(std::initializer_list<int> signals);

/// A descriptor that becomes readable when the process ends; empty where there is none such.
UniqueFd open_process(pid_t process);

}  // namespace hora::launch
