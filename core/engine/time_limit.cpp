#include "core/engine/time_limit.h"

#include "core/negotiation/diagnosis.h"
#include "core/tensor_text.h"

namespace hora::internal {
namespace {

std::string duration_text(std::chrono::milliseconds length) {
  if (length.count() % 1000 != 0) return std::to_string(length.count()) + " ms";
  return std::to_string(length.count() / 1000) + " s";
}

std::string lacking_text(const TimedOut& timed_out) {
  std::string text;
  if (!timed_out.missing.empty()) {
    text = ranks_have(timed_out.missing) + " not submitted it";
  }
  if (!timed_out.unknown.empty()) {
    text += (text.empty() ? "" : ", and ") + ("whether " + ranks_have(timed_out.unknown)) +
            " is not known on this one";
    if (timed_out.rank != timed_out.root) {
      text +=
          ": see the warnings of rank " + std::to_string(timed_out.root) + " (HORA_STALL_WARNING)";
    }
  }
  if (text.empty()) {
    text = "every rank has submitted it, and rank " + std::to_string(timed_out.root) +
           " has not decided it";
  }
  return text;
}

std::string unfinished_text(const TimedOut& timed_out) {
  std::string text = "every rank has submitted it, and it is under way: ";
  if (timed_out.unfinished.empty()) return text + "its result is about to be taken over";
  text += "of this node " + ranks_have(timed_out.unfinished) + " not finished it";
  if (timed_out.has_other_nodes) text += ", and data of other nodes may be missing";
  return text;
}

}  // namespace

TimeLimit TimeLimit::of(std::chrono::milliseconds of_call, std::chrono::milliseconds setting) {
  if (of_call.count() == 0) return {setting, false};
  if (of_call == std::chrono::milliseconds::max()) return {};
  return {of_call, true};
}

Duration TimeLimit::end(Duration submitted) const {
  const auto longest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max() - submitted);
  return length.count() == 0 || length >= longest ? Duration::max() : submitted + length;
}

std::string timeout_text(const TimedOut& timed_out) {
  std::string text = tensor_text(timed_out.name);
  if (timed_out.set != kWorld) text += " of process set " + to_string(timed_out.set);
  text += " is not complete " + duration_text(timed_out.limit.length) + " after rank " +
          std::to_string(timed_out.rank) + " has submitted it: ";
  text += timed_out.decided ? unfinished_text(timed_out) + "."
                            : lacking_text(timed_out) + ". Do all ranks call the same collectives?";
  return text + " Is one of them slow, stopped or gone? Where it may take longer, raise " +
         (timed_out.limit.is_of_call ? "the timeout of this call (0: HORA_TIMEOUT)"
                                     : "HORA_TIMEOUT (0: never), or give the call a timeout");
}

}  // namespace hora::internal
