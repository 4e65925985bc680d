/// Waiting for NCCL's background work, which only polling detects.
#pragma once

#include <hora/error.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace hora {

/// Polls `condition`, ever less often; Error(transport) where it is not true by the deadline.
template <class Condition>
void wait_until(Condition condition, std::chrono::steady_clock::time_point deadline) {
  using std::chrono::microseconds;
  microseconds pause(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::transport,
                  "NCCL was not ready by the deadline; has another rank failed, or not come?");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, microseconds(1000));
  }
}

}  // namespace hora
