#include "core/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/text.h"

namespace hora::internal {
namespace {

/// For the ranks of a node to wake, and for leaders, which may look only ten times a second, to
/// pass a message on.
constexpr auto kRanksNoticeTime = std::chrono::milliseconds(20);
constexpr auto kNodesNoticeTime = std::chrono::milliseconds(300);

/// For the rank that has published the first cause to end, and for its guard to report that; more
/// where that process is seen to live on.
constexpr auto kFailedRankGrace = std::chrono::milliseconds(400);
constexpr auto kLivingRankGrace = std::chrono::seconds(2);

bool ends_by_itself(std::int64_t process) {
  switch (process_state(process)) {
    case ProcessState::stopped:
    case ProcessState::traced:
    case ProcessState::gone:
      return false;
    default:
      return true;
  }
}

Error named(const Error& error, const Submission& failed) {
  return {error.code(), error.what(), error.rank(), failed.name};
}

}  // namespace

Engine::Engine(EngineParts parts)
    : parts_(std::move(parts)),
      progress_lock_(parts_.world.control_block->wakeup_flags(),
                     parts_.world.control_block->local_rank()),
      sets_(parts_, progress_lock_),
      progress_(parts_, sets_, progress_lock_),
      threads_(parts_, sets_, progress_) {}

std::shared_ptr<Submission> Engine::submit(Request&& request, ProcessSet set) {
  Submissions& submissions = sets_.engine_of(set, request.name).submissions();
  return submissions.submit(std::move(request), Caller::goes_on);
}

void Engine::submit_and_wait(Request&& request, ProcessSet set) {
  Submissions& submissions = sets_.engine_of(set, request.name).submissions();
  ProgressThreads::Turn turn(threads_);
  turn.take();
  const auto submission = submissions.submit(std::move(request), Caller::waits);
  threads_.await(*submission, turn);
  collect(*submission);
}

void Engine::wait(Submission& submission) {
  threads_.await(submission);
  collect(submission);
}

void Engine::drop(Submission& submission) {
  threads_.await(submission);
  try {
    submission.owner->collect(submission);
  } catch (const Error& error) {
    log().warn("{}: the handle of {} was dropped and its error lost: {}",
               to_string(identity_of_process(parts_.rank)), tensor_text(submission.name),
               error.what());
    unreported_.keep(named(error, submission));
  }
}

void Engine::orphan(const std::shared_ptr<Submission>& submission) {
  bool has_retreated = true;
  {
    const BetweenRounds lock(progress_.lock());
    if (!submission->finished()) has_retreated = submission->memory.retreat();
  }
  if (!has_retreated) threads_.await(*submission);
  submission->owner->orphan(submission);
}

void Engine::collect(Submission& submission) {
  try {
    submission.owner->collect(submission);
  } catch (const Error&) {
    unreported_.reported();
    throw;
  }
}

int Engine::carry_out(Request request) {
  const auto submission = submit(std::move(request));
  wait(*submission);
  return submission->number;
}

int Engine::join(ProcessSet set) {
  Submissions& submissions = sets_.engine_of(set).submissions();
  for (const auto& submission : submissions.unfinished()) threads_.await(*submission);
  const auto submission = submissions.join();
  wait(*submission);
  return submission->number;
}

bool Engine::runs_on_device(const Request& request, ProcessSet set) const {
  return sets_.engine_of(set, request.name).submissions().memory().on_device(request.signature);
}

std::byte* Engine::allocate_on_device(std::size_t bytes) {
  const BetweenRounds lock(progress_.lock());
  return parts_.device->allocate(bytes);
}

void Engine::release_on_device(std::byte* data) noexcept {
  parts_.device->release(data, [this](const std::function<void()>& step) {
    const BetweenRounds lock(progress_.lock());
    if (poisoned()) return false;
    step();
    return true;
  });
}

void Engine::synchronize(Submission& submission) {
  wait(submission);
  if (!submission.memory.work()) return;
  submission.memory.work()->synchronize();
  if (const auto cause = progress_.failure()) throw detached(*cause);
}

std::vector<std::shared_ptr<Submission>> Engine::uncollected() const {
  std::vector<std::shared_ptr<Submission>> open;
  for (const SetEngine* set : sets_.all()) {
    for (auto& submission : set->submissions().uncollected()) open.push_back(std::move(submission));
  }
  return open;
}

std::string Engine::arrivals_text() const {
  const ArrivalWatch* const arrivals = sets_.world().arrivals();
  return arrivals ? arrivals->text() : std::string();
}

/// For shutdown(), which goes on where a transport has failed. What it waits for is said by the
/// watches of what makes progress (StallWatch, DepartureWatch).
void Engine::wait_until(const std::function<bool()>& reached) {
  while (!reached() && !poisoned()) {
    if (!threads_.has_thread() && progress()) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Engine::end_all(const Error& error) noexcept {
  try {
    const NodeControlBlock& node = *parts_.world.control_block;
    // Another cause that was published before may still be on its way to other nodes.
    if (node.first_cause().publish(error)) {
      for (int r = 0; r < node.local_size(); ++r) node.wakeup_flags().signal(r);
      threads_.wake_thread();
    }
    // The leader may be this rank.
    if (!threads_.has_thread()) threads_.try_step();
    const bool several = parts_.world.topology.nodes() > 1;
    std::this_thread::sleep_for(several ? kNodesNoticeTime : kRanksNoticeTime);
  } catch (const std::exception&) {
    // Memory is exhausted: the others find a cause of their own.
  }
}

void Engine::await_failed_rank() const {
  const int failed = progress_.failed_elsewhere().value_or(parts_.rank);
  if (failed == parts_.rank) return;
  const auto index = static_cast<std::size_t>(failed);
  if (index < parts_.processes.size() && parts_.processes[index].host == host_name()) {
    const auto limit = std::chrono::steady_clock::now() + kLivingRankGrace;
    while (ends_by_itself(parts_.processes[index].pid) &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::this_thread::sleep_for(kFailedRankGrace);
}

void Engine::depart() {
  const auto open = uncollected();
  wait_until(
      [&] { return std::all_of(open.begin(), open.end(), [](auto& s) { return s->finished(); }); });
  for (const auto& submission : open) {
    if (submission->state.load(std::memory_order_acquire) != Submission::kFailed) continue;
    unreported_.keep(named(*submission->error, *submission));
  }
  // Each set is closed in the order of its own decisions.
  const std::vector<SetEngine*> sets = sets_.not_removed();
  for (SetEngine* set : sets) {
    set->submissions().close(Error(ErrorCode::shut_down,
                                   "hora was shut down on this rank (" +
                                       std::to_string(parts_.rank) +
                                       "): no collective can follow shutdown()",
                                   parts_.rank));
    // From here on a leader polls for the others as if a tensor of its own were waiting.
    set->submissions().announce_departure();
  }
  const NodeControlBlock& node = *parts_.world.control_block;
  node.status(node.local_rank()).departed.store(now().count());
  threads_.wake_thread();
  wait_until([&] {
    return std::all_of(sets.begin(), sets.end(), [](auto* s) { return s->all_departed(); });
  });
  wait_until([&] {
    const BetweenRounds lock(progress_.lock());
    return !progress_.messages_left();
  });
}

}  // namespace hora::internal
