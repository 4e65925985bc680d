#include "core/engine/time_limit.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/engine/rank_remark.h"
#include "core/negotiation/diagnosis.h"

namespace hora::internal {
namespace {

/// The share of a limit that a rank that knows more has to notice its end first, and for its
/// message to arrive; and the least and the most that is.
constexpr int kGraceShare = 16;
constexpr auto kLeastGrace = std::chrono::milliseconds(100);
constexpr Duration kLongestGrace = std::chrono::seconds(1);
/// The share of a limit that the root has to ask all leaders, each of which may look only every
/// 100 ms; and the most that is.
constexpr int kNoticeShare = 4;
constexpr Duration kLongestNotice = std::chrono::seconds(2);
static_assert(kLongestNotice <= Expiry::kMostLeft);

std::string duration_text(std::chrono::milliseconds length) {
  if (length.count() % 1000 != 0) return std::to_string(length.count()) + " ms";
  return std::to_string(length.count() / 1000) + " s";
}

std::string unknown_text(const TimedOut& timed_out) {
  std::string text = "whether " + ranks_have(timed_out.unknown) + " is not known on this one";
  if (timed_out.reporter == timed_out.root) return text + ": nothing has come from their nodes";
  const std::string root = "rank " + std::to_string(timed_out.root);
  if (!timed_out.root_is_silent) {
    return text + ": see the warnings of " + root + " (HORA_STALL_WARNING)";
  }
  text += ": " + root + ", which would know, does not answer";
  if (!timed_out.unheard) return text;
  return text + ", and nothing has come from the nodes above for " +
         seconds_text(*timed_out.unheard);
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

Duration TimeLimit::end(Duration submitted, int report_order) const {
  // The least of both in the unit of the longer one: nanoseconds do not hold every length.
  const Duration grace =
      report_order * Duration(std::clamp<std::chrono::milliseconds>(
                         length / kGraceShare, kLeastGrace,
                         std::chrono::ceil<std::chrono::milliseconds>(kLongestGrace)));
  const auto longest =
      std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max() - submitted - grace);
  return length.count() == 0 || length >= longest ? Duration::max() : submitted + length + grace;
}

Duration TimeLimit::notice(Duration submitted) const {
  const Duration last = end(submitted);
  if (last == Duration::max()) return last;
  return last - std::min<Duration>(length / kNoticeShare, kLongestNotice);
}

Expiry TimeLimit::expiry(Duration submitted, Duration now) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end(submitted) - now);
  return {length, std::clamp(left, std::chrono::milliseconds(0), Expiry::kMostLeft), is_of_call};
}

int report_order(bool is_root, bool is_leader) {
  return is_root ? 0 : is_leader ? 1 : 2;
}

namespace {

/// `waited`: how long it is not complete. Begins with the ranks that lack it.
std::string incomplete_text(const TimedOut& facts, const std::string& waited) {
  const std::string rank = "rank " + std::to_string(facts.rank);
  std::string tensor = tensor_text(facts.name);
  if (facts.set != kWorld) tensor += " of process set " + to_string(facts.set);
  std::string text, remarks = remarks_text(facts.remarks);
  if (facts.decided) {
    text = unfinished_text(facts);
  } else if (!facts.unknown.empty()) {
    text = unknown_text(facts);
  } else if (facts.missing.empty()) {
    text = "every rank has submitted it, and rank " + std::to_string(facts.root) +
           " has not decided it";
  }
  if (facts.decided || facts.missing.empty()) {
    text = tensor + " is not complete " + waited + " after " + rank + " has submitted it: " + text;
  } else {
    std::string who = named_ranks(facts.missing);
    // The one rank is named once, with its process.
    if (facts.remarks.size() == 1 && text.empty() && remarks.starts_with(who + " (")) {
      who = remarks.substr(0, remarks.find(')') + 1);
      remarks.replace(0, who.size(), "it");
    }
    text = who + " did not come to " + tensor + " within " + waited + " of " + rank +
           (text.empty() ? "" : ", and ") + text;
  }
  if (!remarks.empty()) text += "; " + remarks;
  return text + (facts.decided ? "." : ". Do all ranks call the same collectives?") +
         " Is one of them slow, stopped or gone?";
}

}  // namespace

std::string stall_text(const TimedOut& facts, Duration waited) {
  return incomplete_text(facts, seconds_text(waited));
}

std::string timeout_text(const TimedOut& timed_out) {
  return incomplete_text(timed_out, duration_text(timed_out.limit.length)) +
         " Where a rank may work alone for longer (a validation, a checkpoint), raise " +
         (timed_out.limit.is_of_call ? "the timeout of this call (0: HORA_TIMEOUT)"
                                     : "HORA_TIMEOUT (0: never), or give the call a timeout");
}

}  // namespace hora::internal
