#include "core/launch/control/event_loop.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

namespace hora::launch {

std::int64_t wall_clock_ns() noexcept {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void EventLoop::watch(int descriptor, short events, std::function<void(short)> on_event) {
  watches_[descriptor] = {events, std::move(on_event)};
}

void EventLoop::change(int descriptor, short events) {
  if (const auto found = watches_.find(descriptor); found != watches_.end()) {
    found->second.events = events;
  }
}

void EventLoop::forget(int descriptor) {
  watches_.erase(descriptor);
}

void EventLoop::each(std::chrono::milliseconds interval, std::function<void()> on_time) {
  interval_ = interval;
  on_time_ = std::move(on_time);
}

void EventLoop::run() {
  while (!std::exchange(stopping_, false)) turn();
}

void EventLoop::turn() {
  std::vector<pollfd> polled;
  polled.reserve(watches_.size());
  for (const auto& [descriptor, watch] : watches_) polled.push_back({descriptor, watch.events, 0});
  const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(interval_.count()));
  if (ready < 0 && errno != EINTR) {
    throw std::system_error(errno, std::generic_category(), "poll");
  }
  for (const pollfd& entry : polled) {
    if (ready <= 0 || entry.revents == 0) continue;
    // An earlier callback of this turn may have removed it.
    const auto found = watches_.find(entry.fd);
    if (found == watches_.end()) continue;
    const auto on_event = found->second.on_event;
    on_event(entry.revents);
  }
  if (on_time_) on_time_();
}

UniqueFd signals_as_descriptor(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) {
    throw std::system_error(errno, std::generic_category(), "sigprocmask");
  }
  UniqueFd descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) throw std::system_error(errno, std::generic_category(), "signalfd");
  return descriptor;
}

UniqueFd open_process(pid_t process) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

}  // namespace hora::launch
