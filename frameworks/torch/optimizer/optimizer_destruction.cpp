// DistributedOptimizer's destructor: the step that is open ends on all ranks, or is given up.
#include <hora/context.h>
#include <hora/printable.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/diagnostics.h"
#include "frameworks/torch/optimizer/optimizer_implementation.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Waits for other ranks, for a bounded time. Thread rule: one thread.
class BoundedWait {
 public:
  /// After HORA_STALL_WARNING (where that is 0: its default) it logs `notice`, and after as long
  /// again it gives up. The time counts from here on.
  BoundedWait(const Context& context, std::string notice);

  /// Blocks until `reached`, which is polled. False: it has given up.
  bool until(const std::function<bool()>& reached);

 private:
  const Context& context_;
  const std::string notice_;
  const std::chrono::milliseconds period_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  bool said_ = false;
};

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

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + in_quotes(name);
  return text;
}

}  // namespace

void OptimizerImplementation::destroy(
    std::unique_ptr<OptimizerImplementation> implementation) noexcept {
  if (!implementation || std::uncaught_exceptions() != 0) return;
  if (!implementation->discard_open_round()) abandon(std::move(implementation));
}

bool OptimizerImplementation::discard_open_round() noexcept {
  if (!averager_.round_open() && !averager_.unsettled()) return true;
  try {
    BoundedWait wait(peers_.context,
                     destroyed_text("waits for the other ranks to end that step: by step(), "
                                    "zero_grad(), or by destroying theirs"));
    return end_open_round(wait);
  } catch (...) {
    return false;  // A destructor does not throw, not even where logging fails.
  }
}

bool OptimizerImplementation::end_open_round(BoundedWait& wait) {
  const auto warn = [&](const std::string& what) { log_warning(destroyed_text(what)); };
  try {
    averager_.check_in_step();
    if (discard_open_round(wait)) return true;
  } catch (const Error& error) {
    warn(std::string("could not end that step: ") + error.what());
    if (!averager_.round_open()) return true;
    if (error.code() == ErrorCode::mismatch || error.code() == ErrorCode::shut_down) return false;
    // Until the other ranks have begun what this one has begun.
    return wait.until([&] { return averager_.awaited().empty(); });
  }
  averager_.leave();
  warn("gives up waiting for the other ranks to end that step: it leaves " +
       joined(averager_.awaited()) + " behind, with their memory, which peers may still write");
  return false;
}

std::string OptimizerImplementation::destroyed_text(const std::string& what) const {
  return "DistributedOptimizer " + in_quotes(name_) +
         ", destroyed after backward() without step(), " + what;
}

bool OptimizerImplementation::discard_open_round(BoundedWait& wait) {
  if (!wait.until([&] { return averager_.tell_end(RoundEnd::discard); })) return false;
  averager_.settle(RoundEnd::discard);
  if (!averager_.round_open()) {
    if (fused_) fused_->end();
    return true;
  }
  averager_.leave_out_missing();
  submit_round(RoundEnd::discard);
  const auto others_have_come = [&] {
    return averager_.awaited().empty() && buffers_.ready() &&
           (!comparison_ || comparison_->ready());
  };
  if (!wait.until(others_have_come)) return false;
  finish_round();
  averager_.settle(RoundEnd::discard);
  if (fused_) fused_->end();
  if (backward_ && averager_.updates()) {
    log_warning(destroyed_text(
        "may leave that step's update in some of the parameters, the same on all ranks "
        "(sharding in_backward)"));
  }
  return true;
}

}  // namespace hora::internal
