/// The networks of emulated hosts (hosts.sh), each of which a process holds.
#pragma once

#include <fcntl.h>
#include <sched.h>

#include <stdexcept>
#include <string>

#include "core/launch/control/system.h"

namespace hora::launch::test {

/// The calling thread is in the network of that process from now on; its sockets stay in the one in
/// which they were made. Throws std::runtime_error.
inline void enter_network_of(const std::string& process) {
  const UniqueFd space(::open(("/proc/" + process + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!space || ::setns(space.get(), CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot enter the network of process " + process);
  }
}

}  // namespace hora::launch::test
