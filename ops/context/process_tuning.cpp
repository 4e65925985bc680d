#include "ops/context/process_tuning.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

namespace hora::internal {

bool keep_large_allocations() {
#if defined(__GLIBC__)
  constexpr int kLarge = 1 << 30;
  constexpr int kOlderLibraries = 32 << 20;  // glibc before 2.35 refuses more
  const bool mapped =
      ::mallopt(M_MMAP_THRESHOLD, kLarge) == 1 || ::mallopt(M_MMAP_THRESHOLD, kOlderLibraries) == 1;
  const bool trimmed = ::mallopt(M_TRIM_THRESHOLD, kLarge) == 1;
  return mapped && trimmed;
#else
  return false;
#endif
}

std::optional<std::string> binding_advice(int cores_of_rank, int cores_of_host, int ranks_of_host) {
  if (cores_of_rank > 1 || cores_of_host <= ranks_of_host) return std::nullopt;
  return "each rank is bound to one core, which its engine shares with the training, while this "
         "host "
         "has " +
         std::to_string(cores_of_host) + " cores for " + std::to_string(ranks_of_host) +
         " ranks: start with `mpirun --bind-to none`, or bind each rank to several cores";
}

int cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int cores_of_host() {
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace hora::internal
