#include "frameworks/torch/optimizer/bounded_wait.h"

#include <hora/context.h>

#include <thread>
#include <utility>

#include "core/diagnostics.h"

namespace hora {
namespace {

constexpr std::chrono::microseconds pause{100};

std::chrono::milliseconds period_of(const Settings& settings) {
  return settings.stall_warning.count() != 0 ? settings.stall_warning : Settings{}.stall_warning;
}

}  // namespace

BoundedWait::BoundedWait(const Context& context, std::string notice)
    : context_(context), notice_(std::move(notice)), period_(period_of(context.settings())) {}

bool BoundedWait::until(const std::function<bool()>& reached) {
  while (!reached()) {
    if (!context_.is_shut_down()) context_.progress();
    std::this_thread::sleep_for(pause);
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited >= 2 * period_) return reached();
    if (waited < period_ || said_) continue;
    log_warning(notice_);
    said_ = true;
  }
  return true;
}

}  // namespace hora
