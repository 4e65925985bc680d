/// Waits for other ranks, for a bounded time.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace hora {

class Context;

/// Thread rule: one thread.
class BoundedWait {
 public:
  /// After HORA_STALL_WARNING (where that is 0: its default) it logs `notice`, and after as long
  /// again it gives up. The time counts from here on.
  BoundedWait(const Context& context, std::string notice);

  /// Blocks until `reached`, which is polled. False: it has given up.
  bool until(const std::function<bool()>& reached);

 private:
  const Context& context_;
  const std::string notice_;
  const std::chrono::milliseconds period_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool said_ = false;
};

}  // namespace hora
