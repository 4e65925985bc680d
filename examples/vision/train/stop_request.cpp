#include "examples/vision/train/stop_request.h"

#include <hora/collectives.h>

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace vision {
namespace {

struct Signal {
  int number;
  const char* name;
};
/// The later one prevails where ranks have got different ones.
constexpr std::array<Signal, 2> kSignals = {{{SIGUSR1, "SIGUSR1"}, {SIGTERM, "SIGTERM"}}};

/// Handlers are the process's: 0, or 1 + the place in kSignals of the latest.
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "read and written by a signal handler");
std::atomic<bool> exists{false};

extern "C" void note(int number) {
  noted.store(number == SIGUSR1 ? 1 : 2);
}

}  // namespace

StopRequest::StopRequest(const hora::Context& world) : world_(world) {
  if (exists.exchange(true)) {
    throw std::logic_error("StopRequest: there is one already, which has the signals' handlers");
  }
  noted.store(0);
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (::sigaction(kSignals[i].number, &action, &before_[i]) == 0) continue;
    const int error = errno;
    while (i-- > 0) ::sigaction(kSignals[i].number, &before_[i], nullptr);
    exists.store(false);
    throw std::system_error(error, std::generic_category(), "StopRequest: sigaction");
  }
}

StopRequest::~StopRequest() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i].number, &before_[i], nullptr);
  }
  exists.store(false);
}

bool StopRequest::poll() {
  finish();
  if (value_ > 0) return true;
  value_ = noted.load();
  handle_ = hora::allreduce_async(world_, hora::view(&value_, 1),
                                  {.name = "stop request", .op = hora::ReduceOp::max});
  return false;
}

void StopRequest::finish() {
  if (handle_.valid()) handle_.wait();
}

std::string StopRequest::signal() const {
  if (handle_.valid() || value_ == 0) return {};
  return kSignals[static_cast<std::size_t>(value_ - 1)].name;
}

}  // namespace vision
