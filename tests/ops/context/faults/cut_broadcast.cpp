#include "tests/ops/context/faults/cut_broadcast.h"

#include <hora/hora.h>
#include <mpi.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace hora::test {
namespace {

using namespace std::chrono_literals;
using Values = std::vector<std::uint8_t>;

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

/// By the kernel, for another thread writes it.
bool has_begun(const Values& values) {
  std::uint8_t first = 0;
  iovec here{&first, 1};
  iovec there{const_cast<std::uint8_t*>(values.data()), 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1 && first != 0;
}

/// Whether the memory of a call that has failed stays as it is while messages go on.
bool is_left_alone(Values& values, pid_t root) {
  std::fill(values.begin(), values.end(), std::uint8_t{0x5a});
  ::kill(root, SIGCONT);
  const auto end = std::chrono::steady_clock::now() + 500ms;
  while (std::chrono::steady_clock::now() < end) {
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  }
  // Whole memory at once: a loop over bytes takes seconds where it is not optimised.
  return values.front() == 0x5a &&
         std::memcmp(values.data(), values.data() + 1, values.size() - 1) == 0;
}

}  // namespace

int cut_broadcast() {
  const Context world = init();
  pid_t root = ::getpid();
  MPI_Bcast(&root, sizeof root, MPI_BYTE, 0, MPI_COMM_WORLD);
  Values values(std::size_t{256} << 20, static_cast<std::uint8_t>(world.rank() == 0 ? 1 : 0));
  std::atomic<bool> is_over{false};
  std::jthread stopper;
  if (world.rank() == 1) {
    stopper = std::jthread([&] {
      while (!has_begun(values) && !is_over.load()) std::this_thread::yield();
      ::kill(root, SIGSTOP);
    });
  }
  try {
    broadcast(world, view(values.data(), static_cast<std::int64_t>(values.size())),
              {.name = "weights", .root = 0});
    is_over.store(true);
    if (world.rank() == 1) ::kill(root, SIGCONT);
    say("no error");
    return 0;
  } catch (const Error& error) {
    is_over.store(true);
    say("rank " + std::to_string(world.rank()) + ": " + std::string(name_of(error.code())) + ": " +
        error.what());
    if (world.rank() == 1) {
      say(is_left_alone(values, root) ? "the memory is left alone" : "the memory is written to");
    }
    std::this_thread::sleep_for(500ms);  // for the other to say its own
    return 3;
  }
}

}  // namespace hora::test
