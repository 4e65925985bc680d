#include <utility>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

FakeStream::FakeStream(StreamsState& state) : state_(state), thread_([this] { run(); }) {}

FakeStream::~FakeStream() {
  thread_.join();
}

void FakeStream::enqueue(std::function<void()> work) {
  const std::scoped_lock lock(state_.mutex);
  work_.push_back(std::move(work));
  ++enqueued_;
  state_.changed.notify_all();
}

void FakeStream::retire() {
  const std::scoped_lock lock(state_.mutex);
  retired_ = true;
  state_.changed.notify_all();
}

void FakeStream::synchronize() {
  std::unique_lock lock(state_.mutex);
  const std::uint64_t target = enqueued_;
  state_.changed.wait(lock, [&] { return state_.stopping || done_ >= target; });
}

void FakeStream::run() {
  std::unique_lock lock(state_.mutex);
  while (true) {
    state_.changed.wait(lock, [this] {
      return state_.stopping || (work_.empty() && retired_) || (!work_.empty() && !state_.held);
    });
    if (state_.stopping || work_.empty()) {
      return;
    }
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    state_.changed.notify_all();
  }
}

}  // namespace hora::internal::test
