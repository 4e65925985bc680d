#include "examples/vision/train/stop_request.h"

#include <hora/collectives.h>

#include <atomic>
#include <cerrno>
#include <system_error>

namespace vision {
namespace {

constexpr std::array stop_signals{SIGUSR1, SIGTERM};
static_assert(SIGUSR1 < SIGTERM, "the largest prevails where ranks have got different ones");

std::atomic<int> noted_signal{0};  // the process's, as handlers are: the latest; 0: none
static_assert(std::atomic<int>::is_always_lock_free, "read and written by a signal handler");

extern "C" void note_signal(int number) {
  noted_signal.store(number);
}

}  // namespace

StopRequest::StopRequest(const hora::Context& world) : world_(world) {
  noted_signal.store(0);
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < stop_signals.size(); ++i) {
    if (::sigaction(stop_signals[i], &action, &before_[i]) != 0) {
      throw std::system_error(errno, std::generic_category(), "StopRequest: sigaction");
    }
  }
}

StopRequest::~StopRequest() {
  for (std::size_t i = 0; i < stop_signals.size(); ++i) {
    ::sigaction(stop_signals[i], &before_[i], nullptr);
  }
}

bool StopRequest::poll() {
  finish();
  if (value_ > 0) return true;
  value_ = noted_signal.load();
  handle_ = hora::allreduce_async(world_, hora::view(&value_, 1),
                                  {.name = "stop request", .op = hora::ReduceOp::max});
  return false;
}

void StopRequest::finish() {
  if (handle_.valid()) handle_.wait();
}

std::string StopRequest::signal() const {
  if (handle_.valid() || value_ == 0) return {};
  return value_ == SIGTERM ? "SIGTERM" : "SIGUSR1";
}

}  // namespace vision
