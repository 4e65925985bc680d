/// Statuses as waitpid(2) gives them.
#pragma once

namespace hora::launch {

/// Of a process that has ended by exit(`status`).
constexpr int exited(int status) {
  return status << 8;
}

}  // namespace hora::launch
