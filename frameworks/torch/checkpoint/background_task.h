/// One task at a time on a thread of its own.
#pragma once

#include <functional>
#include <future>
#include <string>

namespace hora::internal {

/// The destructor waits. Thread rule: one thread at a time.
class BackgroundTask {
 public:
  /// Not before wait() has returned.
  void start(std::function<void()> task) {
    pending_ = std::async(std::launch::async, std::move(task));
  }

  /// Waits for the task; what it has thrown, as text. Empty: nothing, or no task was started.
  std::string wait() {
    if (!pending_.valid()) return "";
    try {
      pending_.get();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  std::future<void> pending_;
};

}  // namespace hora::internal
