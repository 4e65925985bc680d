#include "core/trace/tracer.h"

#include <pthread.h>
#include <unistd.h>

#include <array>

namespace hora {

std::string this_thread_name() {
  const pid_t number = ::gettid();
  if (number == ::getpid()) return "main thread";
  std::array<char, 16> name{};  // the kernel's limit
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return "thread " + std::string(name.data()) + " " + std::to_string(number);
}

}  // namespace hora
