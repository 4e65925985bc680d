// How a step ends that is open when its DistributedOptimizer is destroyed.
#include <hora/printable.h>

#include <exception>
#include <utility>

#include "core/warning.h"
#include "frameworks/torch/let_go.h"
#include "frameworks/torch/optimizer/bounded_wait.h"
#include "frameworks/torch/optimizer/optimizer_implementation.h"

namespace hora {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + in_quotes(name);
  return text;
}

}  // namespace

void DistributedOptimizer::Implementation::destroy(
    std::unique_ptr<Implementation> implementation) noexcept {
  if (!implementation || std::uncaught_exceptions() != 0) return;
  if (!implementation->discard_open_round()) let_go(std::move(implementation));
}

bool DistributedOptimizer::Implementation::discard_open_round() noexcept {
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

bool DistributedOptimizer::Implementation::end_open_round(BoundedWait& wait) {
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

std::string DistributedOptimizer::Implementation::destroyed_text(const std::string& what) const {
  return "DistributedOptimizer " + in_quotes(name_) +
         ", destroyed after backward() without step(), " + what;
}

bool DistributedOptimizer::Implementation::discard_open_round(BoundedWait& wait) {
  if (!wait.until([&] { return averager_.tell_end(RoundEnd::discard); })) return false;
  averager_.settle(RoundEnd::discard);
  if (!averager_.round_open()) return true;
  averager_.leave_out_missing();
  submit_round(RoundEnd::discard);
  const auto others_have_come = [&] {
    return averager_.awaited().empty() && buffers_.ready() &&
           (!comparison_ || comparison_->ready());
  };
  if (!wait.until(others_have_come)) return false;
  finish_round();
  averager_.settle(RoundEnd::discard);
  return true;
}

}  // namespace hora
