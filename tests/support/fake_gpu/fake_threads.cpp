// Each thread's current GPU, and the contexts that this makes.
#include <algorithm>
#include <atomic>
#include <string>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t own = ++threads;
  return own;
}

FakeDevice::ThreadState& FakeDevice::own_thread() {
  return threads_[thread_number()];
}

int FakeDevice::current() {
  const std::scoped_lock lock(state_.mutex);
  return own_thread().current.value_or(0);
}

bool FakeDevice::has_current() {
  const std::scoped_lock lock(state_.mutex);
  return own_thread().current.has_value();
}

cudaError_t FakeDevice::choose(int index) {
  const std::scoped_lock lock(state_.mutex);
  if (index < 0 || index > number_ + options_.peers) {
    return cudaErrorInvalidDevice;
  }
  own_thread().current = index;
  contexts_.insert(index);
  return cudaSuccess;
}

void FakeDevice::touch() {
  if (!has_current()) choose(0);
}

bool FakeDevice::is_current(std::string_view what) {
  const int now = current();
  if (now == number_) return true;
  violation(std::string(what) + " while GPU " + std::to_string(now) +
            " is the thread's current one");
  return false;
}

std::vector<int> FakeDevice::contexts() const {
  const std::scoped_lock lock(state_.mutex);
  return {contexts_.begin(), contexts_.end()};
}

}  // namespace hora::internal::test
