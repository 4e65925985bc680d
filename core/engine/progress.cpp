#include "core/engine/progress.h"

#include <algorithm>
#include <string>
#include <thread>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/flight/flight_recorder.h"

namespace hora::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// A pause is at most this share of the time already waited, so polling late never costs more than
/// an eighth of the wait, and a long wait costs little CPU.
constexpr int kBackoffShare = 8;
/// From here on a pause grows by a smaller share of the wait: of a poll of MPI, which takes 20 to
/// 40 us after a sleep, 1,000 a second are 2 to 4 % of a core.
constexpr Duration kLongestShortPoll = milliseconds(1);
constexpr int kLongBackoffShare = 200;
constexpr Duration kLongestPoll = milliseconds(10);
/// While data travels, MPI moves it only when polled.
constexpr Duration kLongestDataPoll = microseconds(100);
/// A leader with nothing to do still hears of shutdowns and errors of other nodes.
constexpr Duration kIdlePoll = milliseconds(100);
/// Failures of what runs on a device are looked for this often.
constexpr Duration kDevicePoll = milliseconds(10);
/// The first pause while no thread is blocked in wait(): polling hot beside a computing main thread
/// would use up this thread's share of the core, and delay it later by a whole time slice.
constexpr Duration kFirstPause = microseconds(10);
/// After a failure: how long this rank helps others to receive what it has begun to send, and how
/// long it waits itself for what arrives in callers' memory.
constexpr Duration kLongestHelp = milliseconds(100);
constexpr Duration kLongestArrival = std::chrono::seconds(1);
/// For the cause of a PeerFailure to be found (a rank that is gone: within a second) and to come
/// from another node; and how much later other nodes than the first give up waiting for it, so that
/// of several that have found the same one alone says so.
constexpr Duration kLongestNews = std::chrono::seconds(2);
constexpr Duration kFirstNodeLead = milliseconds(500);
constexpr auto kNewsPoll = milliseconds(1);

}  // namespace

Duration pause_between_polls(Duration idle) {
  const Duration late =
      std::clamp<Duration>(idle / kLongBackoffShare, kLongestShortPoll, kLongestPoll);
  return std::min<Duration>(idle / kBackoffShare, late);
}

const std::vector<SetEngine*>& Progress::engines() const {
  sets_.progress_lock().assert_held();
  return sets_.engines();
}

bool Progress::step(Duration time) {
  if (sets_.poisoned().load()) return false;
  try {
    if (first_cause().is_published()) throw EndedElsewhere(first_cause().get().value());
    return advance(time);
  } catch (const EndedElsewhere& error) {
    poison(error, Origin::elsewhere);
  } catch (const PeerFailure& failure) {
    poison_for(failure);
  } catch (const Error& error) {
    poison(error, Origin::here);
  } catch (const std::exception& error) {
    poison(Error(ErrorCode::transport, std::string("hora's engine failed: ") + error.what(),
                 parts_.rank),
           Origin::here);
  }
  return true;
}

bool Progress::advance(Duration time) {
  bool progress = false;
  // By index: the world's decisions can add to the list.
  for (std::size_t i = 0; i < engines().size(); ++i) {
    // The sets before may have moved much data.
    if (i > 0) time = now();
    progress |= engines()[i]->make_progress(time);
  }
  sets_.progress_lock().assert_held();
  progress |= sets_.advance_changes();
  if (parts_.device) device_busy_ = parts_.device->check();
  return progress;
}

/// `found`: by this rank; what another one has found first holds instead.
void Progress::poison(const Error& found, Origin origin) {
  const bool is_first = first_cause().publish(found);
  const Error error = is_first ? detached(found) : first_cause().get().value_or(detached(found));
  if (is_first && origin == Origin::here) {
    log().error("{}: {}", to_string(identity_of_process(parts_.rank)), error.what());
  }
  // Before any call fails: whose error it is, and what was waited for.
  if (parts_.flight) {
    is_first&& origin == Origin::here ? parts_.flight->failed(error)
                                      : parts_.flight->failed_elsewhere(error);
  }
  for (SetEngine* engine : engines()) engine->submissions().close(error);
  sets_.poisoned().store(true);
  parts_.world.control_block->signal_others();
  sets_.world().send_end(error);
  // Before handles fail: a caller that gets the error may free memory that a device uses.
  if (parts_.device) parts_.device->abort();
  // Before handles fail: likewise memory into which messages arrive.
  withdraw();
  for (SetEngine* engine : engines()) engine->submissions().fail_all(error);
}

void Progress::poison_for(const PeerFailure& failure) {
  Error cause = failure;
  Origin origin = Origin::here;
  try {
    if (const auto gone = await_cause()) cause = *gone;
  } catch (const EndedElsewhere& elsewhere) {
    cause = elsewhere;
    origin = Origin::elsewhere;
  } catch (const Error&) {
    // Messages fail as well: what was found first holds.
  }
  poison(cause, origin);
}

/// Only where devices are connected over nodes: in a node, causes are published faster than they
/// have consequences. Gives that of a rank of this node that is gone; throws EndedElsewhere for
/// others.
std::optional<Error> Progress::await_cause() {
  if (!parts_.world.device_spans_nodes) return std::nullopt;
  const bool is_first = parts_.world.topology.node_of(parts_.rank) == 0;
  const Duration end = now() + kLongestNews + (is_first ? Duration{} : kFirstNodeLead);
  for (Duration time = now(); time < end; time = now()) {
    if (first_cause().is_published()) throw EndedElsewhere(first_cause().get().value());
    sets_.world().hear(time);
    for (SetEngine* engine : engines()) {
      if (auto gone = engine->gone_rank(time)) return gone;
    }
    std::this_thread::sleep_for(kNewsPoll);
  }
  return std::nullopt;
}

/// Returns when nothing arrives any more in memory that callers get back; where that cannot be
/// reached, the job ends before any caller has its error.
void Progress::withdraw() {
  const Duration begin = now();
  while (true) {
    MemoryUse use = MemoryUse::none;
    for (SetEngine* engine : engines()) use = std::max(use, engine->withdraw());
    const Duration waited = now() - begin;
    if (use == MemoryUse::none || (use == MemoryUse::reads && waited > kLongestHelp)) return;
    if (waited > kLongestArrival) break;
    std::this_thread::yield();
  }
  log().critical(
      "{} ends the job: a message from another node is on its way into the memory of a call that "
      "has failed, and does not arrive; it might be written after the call has returned",
      to_string(identity_of_process(parts_.rank)));
  log().flush();
  parts_.abort();
}

std::optional<Error> Progress::failure() const {
  return sets_.poisoned().load() ? first_cause().get() : std::nullopt;
}

bool Progress::is_logged(const std::string& text) const {
  const auto cause = first_cause().get();
  return cause && text.find(cause->what()) != std::string::npos;
}

std::optional<int> Progress::failed_elsewhere() const {
  const auto cause = first_cause().get();
  if (!cause || cause->rank() == parts_.rank) return std::nullopt;
  return cause->rank();
}

void Progress::check_timeouts(Duration time) {
  if (sets_.poisoned().load()) return;
  for (SetEngine* engine : engines()) {
    if (const auto error = engine->timed_out(time)) return poison(*error, Origin::here);
    if (const auto error = engine->gone_rank(time)) return poison(*error, Origin::here);
    if (const auto error = engine->stopped_rank(time)) return poison(*error, Origin::here);
    engine->watch_stalls(time);
  }
}

bool Progress::has_pending_work() const {
  if (sets_.poisoned().load()) return false;
  return first_cause().is_published() || std::any_of(engines().begin(), engines().end(),
                                                     [](auto* e) { return e->has_pending_work(); });
}

bool Progress::is_running() const {
  return std::any_of(engines().begin(), engines().end(), [](auto* e) { return e->is_running(); });
}

bool Progress::data_travels() const {
  sets_.progress_lock().assert_held();
  return sets_.changes_are_under_way() ||
         std::any_of(engines().begin(), engines().end(), [](auto* e) { return e->polls(); });
}

bool Progress::messages_left() const {
  return std::any_of(engines().begin(), engines().end(),
                     [](auto* e) { return e->messages_left(); });
}

/// True while messages and mail are to be sent or received for which no signal arrives.
bool Progress::must_poll() {
  if (sets_.poisoned().load()) return false;
  try {
    return data_travels() || std::any_of(engines().begin(), engines().end(), [](auto* e) {
             return e->messages_left() || e->submissions().mail_waits() ||
                    (e->leads_several() && e->submissions().wait_for_peers());
           });
  } catch (const Error& error) {
    poison(error, Origin::here);
    return false;
  }
}

bool Progress::is_unfinished() {
  return has_pending_work() || is_running() || must_poll() ||
         // What waits too long: the sleep that the engine has chosen may end later.
         std::any_of(engines().begin(), engines().end(),
                     [](auto* e) { return e->deadline().has_value(); });
}

void Progress::await_done() {
  for (SetEngine* engine : engines()) engine->control_block().await_done(engine->awaited());
}

bool Progress::spins(Duration idle, bool awaited) {
  if (must_poll()) return awaited && idle < parts_.settings.spin;
  // Peers finish the unit that this rank has finished at about the same time.
  return is_running() && idle < parts_.settings.spin / 10;
}

WakeupFlags::SleepLength Progress::sleep_length(Duration time, Duration idle, bool awaited) {
  if (sets_.poisoned().load()) return std::nullopt;
  await_done();
  if (has_pending_work()) return WakeupFlags::kNoSleep;
  const bool leads_several =
      std::any_of(engines().begin(), engines().end(), [](auto* e) { return e->leads_several(); });
  if (must_poll()) {
    const Duration longest = data_travels() ? kLongestDataPoll : kLongestPoll;
    const Duration pause = std::min(pause_between_polls(idle), longest);
    return awaited ? pause : std::max<Duration>(pause, kFirstPause);
  }
  Duration pause = leads_several ? kIdlePoll : kOverdueTick;
  if (device_busy_) pause = kDevicePoll;
  Duration until = Duration::max();
  for (const SetEngine* engine : engines()) {
    until = std::min(until, engine->submissions().next_timeout());
    if (const auto deadline = engine->deadline()) until = std::min(until, *deadline);
  }
  return std::clamp<Duration>(until - time, microseconds(100), pause);
}

}  // namespace hora::internal
