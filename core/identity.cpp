#include "core/identity.h"

#include <unistd.h>

#include <array>

namespace hora {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  return name.data();
}

ProcessIdentity identity_of_process(int rank) {
  return {.rank = rank, .host = host_name(), .pid = ::getpid()};
}

std::string to_string(const ProcessIdentity& process) {
  return "rank " + std::to_string(process.rank) + " (host " + process.host + ", pid " +
         std::to_string(process.pid) + ")";
}

}  // namespace hora
