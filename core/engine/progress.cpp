#include "core/engine/progress.h"

#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/log.h"

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
/// After a failure: how long others are helped to receive, and arrivals in callers' memory awaited.
constexpr Duration kLongestHelp = milliseconds(100);
constexpr Duration kLongestArrival = std::chrono::seconds(1);
/// For the cause of a PeerFailure to be found (a rank that is gone: within a second) and to come
/// from another node; and how much later other nodes than the first give up waiting for it, so that
/// of several that have found the same one alone says so.
constexpr Duration kLongestNews = std::chrono::seconds(2);
constexpr Duration kFirstNodeLead = milliseconds(500);
constexpr Duration kNewsPoll = milliseconds(1);

/// CPU time the engine asks for at once. With the kernel's default (3 ms) it does not preempt a
/// computing main thread, and a reduction starts that much later than the last operation.
constexpr std::uint64_t kTimeSliceNanoseconds = 100'000;

/// struct sched_attr of sched_setattr(2), version 0.
struct SchedulingAttributes {
  std::uint32_t size;
  std::uint32_t policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime;
  std::uint64_t deadline;
  std::uint64_t period;
};

/// A short time slice (Linux 6.12, EEVDF's custom slice) is served sooner. Needs no privilege;
/// older kernels ignore it, and where it is refused nothing is lost but latency.
void ask_for_short_slices() {
  SchedulingAttributes attributes{};
  constexpr unsigned kNoFlags = 0;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, kNoFlags) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime = kTimeSliceNanoseconds;
  ::syscall(SYS_sched_setattr, 0, &attributes, kNoFlags);
}

/// Where cores are scarce a rank polls this long before it yields.
constexpr Duration kBriefly = microseconds(1);

/// The kernel's default slack would add 50 us to each pause between two polls.
class PreciseSleep {
 public:
  PreciseSleep() : slack_(::prctl(PR_GET_TIMERSLACK)) { ::prctl(PR_SET_TIMERSLACK, 1000UL); }
  ~PreciseSleep() {
    if (slack_ > 0) ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_));
  }
  PreciseSleep(const PreciseSleep&) = delete;
  PreciseSleep& operator=(const PreciseSleep&) = delete;

 private:
  int slack_;
};

std::vector<int> ranks_in(const Signature& signature) {
  std::vector<int> ranks;
  for (const std::int64_t rank : signature.shape) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

Request request_of(OperationKind kind, std::string_view name, Shape numbers) {
  return {.name = name,
          .signature = {.kind = kind, .type = DataType::int64, .shape = std::move(numbers)},
          .location = Location{}};
}

[[noreturn]] void refuse_set(const std::string& why, int rank, std::string_view tensor) {
  const std::string about = tensor.empty() ? "" : tensor_text(tensor) + ": ";
  throw Error(ErrorCode::invalid_argument, about + why, rank, std::string(tensor));
}

}  // namespace

/// A thread is blocked, unless the operation is finished already: the flight record and a timeline
/// note it, and, while it sleeps, the ranks of the node see it.
class Wait {
 public:
  Wait(RankStatus& status, const Operation& operation)
      : status_(status), operation_(operation), blocks_(!operation.finished()) {
    if (!blocks_) return;
    set().record.blocked(true);
    if (set().trace.on()) begin_ = trace_now();
  }
  ~Wait() {
    if (!blocks_) return;
    if (is_seen_) status_.waits_for.clear();
    set().record.blocked(false);
    if (begin_ == TraceTime{}) return;
    try {
      const Tracer& trace = set().trace;
      const std::string thread = this_thread_name();
      const TraceTime end = trace_now();
      trace.record([&](Recording& recording) {
        recording.waited(thread, trace.tensor(operation_.name), begin_, end);
      });
    } catch (const std::exception&) {
      // Memory is exhausted: the wait is missing in the timeline.
    }
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  void sleeps() {
    if (!is_seen_) status_.waits_for.write(operation_.name, now(), set().id);
    is_seen_ = true;
  }

 private:
  const SetMember& set() const { return operation_.owner->set(); }

  RankStatus& status_;
  const Operation& operation_;
  const bool blocks_;
  bool is_seen_ = false;
  TraceTime begin_{};
};

ProcessSets::ProcessSets(const EngineParts& parts, Collective agree)
    : parts_(parts), agree_(std::move(agree)) {
  Set& world = *sets_.emplace_back(std::make_unique<Set>());
  world.ranks = parts_.world.topology.ranks();
  world.engine = std::make_unique<SetEngine>(parts_.world, parts_, aborted_, kWorld);
  world_ = world.engine.get();
}

const ProcessSets::Set& ProcessSets::known(ProcessSet set, std::string_view tensor) const {
  if (set.number() >= sets_.size()) {
    refuse_set(
        fmt::format("process set {} does not exist: there are {} (0 is the world), others come "
                    "from hora::add_process_set()",
                    set.number(), sets_.size()),
        parts_.rank, tensor);
  }
  if (sets_[set.number()]->removed) {
    refuse_set("process set " + to_string(set) + " was removed", parts_.rank, tensor);
  }
  return *sets_[set.number()];
}

SetEngine& ProcessSets::engine_of(ProcessSet set, std::string_view tensor) const {
  // The world is there from construction on, and is never removed.
  if (set == kWorld) return *world_;
  const SharedGuard lock(sets_lock_);
  const Set& found = known(set, tensor);
  if (!found.engine) {
    refuse_set(
        fmt::format("rank {} is not in process set {}, which has the ranks {}: only they may "
                    "submit to it",
                    parts_.rank, set.number(), ranks_text(found.ranks)),
        parts_.rank, tensor);
  }
  return *found.engine;
}

const std::vector<int>& ProcessSets::ranks_of(ProcessSet set, std::string_view tensor) const {
  const SharedGuard lock(sets_lock_);
  return known(set, tensor).ranks;
}

ProcessSet ProcessSets::add(const std::vector<int>& ranks) {
  const LockGuard one_at_a_time(call_lock_);
  Request request =
      request_of(OperationKind::add_process_set, kAddSetName, {ranks.begin(), ranks.end()});
  // The first member on this rank's node allocates the memory of their control block.
  const Topology of_set = restricted(parts_.world.topology, ranks);
  const int node = of_set.node_of(parts_.rank);
  if (node < 0 || of_set.local_rank_of(parts_.rank) != 0) {
    return ProcessSet(static_cast<std::uint32_t>(agree_(std::move(request))));
  }
  const std::size_t bytes = parts_.sets->control_block_bytes(of_set, node);
  const NodeMemory::MemoryBlock control_block = parts_.world.memory->allocate(bytes);
  std::memset(control_block.data, 0, bytes);
  request.location = control_block.location;
  try {
    return ProcessSet(static_cast<std::uint32_t>(agree_(std::move(request))));
  } catch (...) {
    if (!aborted().load()) parts_.world.memory->release(control_block.data);
    throw;
  }
}

void ProcessSets::remove(ProcessSet set) {
  const LockGuard one_at_a_time(call_lock_);
  {
    const SharedGuard lock(sets_lock_);
    const Set& found = known(set);
    if (set == kWorld) refuse_set("process set 0 is the world, which stays", parts_.rank, {});
    const auto open = found.engine ? found.engine->operations().open_name() : std::nullopt;
    if (open) {
      throw Error(ErrorCode::invalid_use,
                  fmt::format("process set {} cannot be removed: {} is in flight on it: wait for "
                              "its handle first",
                              set.number(), tensor_text(*open)),
                  parts_.rank, *open);
    }
  }
  agree_(request_of(OperationKind::remove_process_set, kRemoveSetName,
                    {static_cast<std::int64_t>(set.number())}));
}

std::vector<SetEngine*> ProcessSets::all(bool removed_too) const {
  std::vector<SetEngine*> engines;
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->engine && (removed_too || !set->removed)) engines.push_back(set->engine.get());
  }
  return engines;
}

Statistics ProcessSets::statistics() const {
  Statistics sum;
  for (const SetEngine* engine : all()) {
    const Statistics one = engine->operations().statistics();
    sum.operations += one.operations;
    sum.bytes += one.bytes;
    sum.in_flight += one.in_flight;
    sum.batches += one.batches;
  }
  return sum;
}

void ProcessSets::disconnect() {
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->transport) set->transport->disconnect();
  }
}

SetEngine* ProcessSets::enter(const SetPlan& plan, std::unique_ptr<SetTransport> transport) {
  auto set = std::make_unique<Set>();
  set->ranks = plan.topology.ranks();
  set->transport = std::move(transport);
  if (plan.topology.node_of(parts_.rank) >= 0) {
    set->engine = std::make_unique<SetEngine>(set->transport->parts(), parts_, aborted_, plan.id);
  }
  const LockGuard lock(sets_lock_);
  return sets_.emplace_back(std::move(set))->engine.get();
}

SetEngine* ProcessSets::close(std::size_t number) {
  const LockGuard lock(sets_lock_);
  Set& set = *sets_[number];
  set.removed = true;
  set.transport->disconnect();
  if (set.engine) {
    set.engine->operations().fail_undecided(
        Error(ErrorCode::invalid_use, "its process set was removed", parts_.rank));
  }
  return set.engine.get();
}

Duration pause_between_polls(Duration idle) {
  const Duration late =
      std::clamp<Duration>(idle / kLongBackoffShare, kLongestShortPoll, kLongestPoll);
  return std::min<Duration>(idle / kBackoffShare, late);
}

Progress::Progress(const EngineParts& parts, ProcessSets& sets)
    : parts_(parts),
      sets_(sets),
      wakeup_flags_(parts_.world.control_block->wakeup_flags()),
      local_rank_(parts_.world.control_block->local_rank()),
      lock_(wakeup_flags_, local_rank_),
      engines_{&sets.world()} {}

bool Progress::step(Duration time) {
  if (sets_.aborted().load()) return false;
  try {
    if (first_cause().is_published()) throw EndedElsewhere(first_cause().get().value());
    return suspicion_ ? look_for_cause(time) : advance(time);
  } catch (const EndedElsewhere& error) {
    abort(error, Origin::elsewhere);
  } catch (const PeerFailure& failure) {
    suspect(failure, time);
  } catch (const Error& error) {
    abort(error, Origin::here);
  } catch (const std::exception& error) {
    abort(Error(ErrorCode::transport, std::string("hora's engine failed: ") + error.what(),
                parts_.rank),
          Origin::here);
  }
  return true;
}

bool Progress::advance(Duration time) {
  bool progress = false;
  // By index: the world's decisions can add to the list.
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    // The sets before may have moved much data.
    if (i > 0) time = now();
    progress |= engines_[i]->make_progress(time);
  }
  progress |= advance_changes();
  if (parts_.device) device_busy_ = parts_.device->check();
  return progress;
}

/// True if a change was completed.
bool Progress::advance_changes() {
  bool any = false;
  for (auto& operation : sets_.world().take_changes()) changes_.push_back({std::move(operation)});
  while (!changes_.empty()) {
    Change& change = changes_.front();
    const Signature& signature = change.operation->signature;
    if (signature.kind == OperationKind::remove_process_set) {
      std::erase(engines_, sets_.close(static_cast<std::size_t>(signature.shape.front())));
    } else if (!advance_addition(change)) {
      return any;
    }
    sets_.world().operations().finish(change.operation, std::nullopt);
    changes_.pop_front();
    any = true;
  }
  return any;
}

/// False while the set's transport is in the making.
bool Progress::advance_addition(Change& change) {
  SetPlan& plan = change.plan;
  if (!change.transport) {
    const Topology& world = parts_.world.topology;
    plan.id = sets_.next_id();
    plan.topology = restricted(world, ranks_in(change.operation->signature));
    if (const int node = plan.topology.node_of(parts_.rank); node >= 0) {
      const int first = plan.topology.ranks_of_node[static_cast<std::size_t>(node)].front();
      plan.control_block_owner = world.local_rank_of(first);
      plan.control_block =
          change.operation->locations[static_cast<std::size_t>(plan.control_block_owner)];
    }
    change.transport = parts_.sets->begin(plan);
  }
  if (!change.transport->poll()) return false;
  if (SetEngine* const engine = sets_.enter(plan, std::move(change.transport))) {
    engines_.push_back(engine);
  }
  change.operation->number = static_cast<int>(plan.id.number());
  return true;
}

/// `found`: by this rank; what another one has found first holds instead.
void Progress::abort(const Error& found, Origin origin) {
  const bool is_first = first_cause().publish(found);
  const Error error = is_first ? detached(found) : first_cause().get().value_or(detached(found));
  if (is_first && origin == Origin::here) {
    log().error("{}: {}", to_string(identity_of_process(parts_.rank)), error.what());
  }
  // Before any call fails: whose error it is, and what was waited for.
  if (parts_.flight) parts_.flight->failed(error, !is_first || origin == Origin::elsewhere);
  for (SetEngine* engine : engines_) engine->operations().close(error);
  sets_.aborted().store(true);
  parts_.world.control_block->signal_others();
  if (LeaderIo* const leader = sets_.world().leader()) leader->send_end(error);
  // Before handles fail: a caller that gets the error may free memory that a device uses.
  if (parts_.device) parts_.device->abort();
  // Before handles fail: likewise memory into which messages arrive.
  withdraw();
  for (SetEngine* engine : engines_) engine->operations().fail_all(error);
}

/// Waits only where devices span nodes: in a node, causes are published before their consequences.
void Progress::suspect(const PeerFailure& failure, Duration time) {
  if (!parts_.world.device_spans_nodes) return abort(failure, Origin::here);
  const bool is_first = parts_.world.topology.node_of(parts_.rank) == 0;
  suspicion_ = {detached(failure), time + kLongestNews + (is_first ? Duration{} : kFirstNodeLead)};
}

/// In place of advance(), until the cause is known: another node sends it (EndedElsewhere), or
/// check_timeouts() finds a rank of this node that is gone.
bool Progress::look_for_cause(Duration time) {
  bool is_time = time >= suspicion_->until;
  try {
    if (LeaderIo* const leader = sets_.world().leader()) leader->work(time);
  } catch (const EndedElsewhere&) {
    throw;
  } catch (const Error&) {
    is_time = true;  // messages fail as well: what was found first holds
  }
  if (is_time) abort(suspicion_->error, Origin::here);
  return is_time;
}

/// Returns when nothing arrives any more in callers' memory; else ends the job before they know.
void Progress::withdraw() {
  const Duration begin = now();
  while (true) {
    MemoryUse use = MemoryUse::none;
    for (SetEngine* engine : engines_) use = std::max(use, engine->data_path().withdraw());
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

/// Aborts the engine, as errors of transports do, where a collective has run out of time, or a
/// rank that it waits for has ended or is stopped; reports and logs what waits too long.
void Progress::check_timeouts(Duration time) {
  if (sets_.aborted().load()) return;
  for (SetEngine* engine : engines_) {
    if (const auto error = engine->watch(time)) return abort(*error, Origin::here);
  }
}

/// A step would find something to do that was announced to this rank.
bool Progress::has_pending_work() const {
  if (sets_.aborted().load()) return false;
  return first_cause().is_published() || any(&SetEngine::has_pending_work);
}

bool Progress::data_travels() const {
  return !changes_.empty() || any([](auto* e) { return e->data_path().polls(); });
}

bool Progress::messages_left() const {
  return any(&SetEngine::messages_left);
}

/// True while messages and mail are to be sent or received for which no signal arrives.
bool Progress::must_poll() {
  if (sets_.aborted().load()) return false;
  try {
    return data_travels() || any([](auto* e) {
             return e->messages_left() || e->operations().mail_waits() ||
                    (e->leads_several() && e->operations().wait_for_peers());
           });
  } catch (const Error& error) {
    abort(error, Origin::here);
    return false;
  }
}

bool Progress::is_unfinished() {
  return suspicion_ || has_pending_work() || any(&SetEngine::is_running) || must_poll() ||
         // Something waits too long: the sleep that the engine has chosen may end later.
         any([](auto* e) { return e->deadline().has_value(); });
}

/// After `idle` without progress, the next step comes without a pause.
bool Progress::spins(Duration idle, bool awaited) {
  if (suspicion_) return false;
  if (must_poll()) return awaited && idle < parts_.settings.spin;
  // Peers finish the unit that this rank has finished at about the same time.
  return any(&SetEngine::is_running) && idle < parts_.settings.spin / 10;
}

WakeupFlags::SleepLength Progress::sleep_length(Duration time, Duration idle, bool awaited) {
  if (sets_.aborted().load()) return std::nullopt;
  if (suspicion_) return kNewsPoll;
  for (SetEngine* engine : engines_) {
    engine->control_block().await_done(engine->data_path().awaited());
  }
  if (has_pending_work()) return WakeupFlags::kNoSleep;
  if (must_poll()) {
    const Duration longest = data_travels() ? kLongestDataPoll : kLongestPoll;
    const Duration pause = std::min(pause_between_polls(idle), longest);
    return awaited ? pause : std::max<Duration>(pause, kFirstPause);
  }
  Duration pause = any(&SetEngine::leads_several) ? kIdlePoll : kOverdueTick;
  if (device_busy_) pause = kDevicePoll;
  Duration until = Duration::max();
  for (const SetEngine* engine : engines_) {
    until = std::min(until, engine->operations().next_timeout());
    if (const auto deadline = engine->deadline()) until = std::min(until, *deadline);
  }
  return std::clamp<Duration>(until - time, microseconds(100), pause);
}

bool Progress::Turn::take() {
  if (lock_.owns_lock()) return true;
  if (progress_.stopping_.load() || !lock_.try_lock()) return false;
  progress_.wakeup_flags_.set_caller(true);
  return true;
}

void Progress::Turn::leave() {
  if (!lock_.owns_lock()) return;
  progress_.lock().assert_held();
  progress_.wakeup_flags_.set_caller(false);
  // Signals went to this caller meanwhile, and only it has polled: the engine has seen none.
  const bool leftover = progress_.is_unfinished();
  lock_.unlock();
  if (leftover) progress_.wake_rank();
}

void Progress::stop() {
  stopping_.store(true);
  if (!thread_.joinable()) return;
  wakeup_flags_.wake_engine();
  thread_.join();
}

bool Progress::try_step() {
  if (!lock_.try_lock()) return false;
  const LockGuard lock(lock_, std::adopt_lock);
  if (stopping_.load()) return false;
  const bool progress = step();
  if (!progress) check_timeouts(now());
  return progress;
}

void Progress::run() {
  const PreciseSleep precise;
  ask_for_short_slices();
  Duration idle_since = now();
  while (!stopping_.load()) {
    bool progress = false;
    {
      const LockGuard lock(lock_);
      progress = step();
    }
    if (progress) {
      idle_since = now();
    } else {
      pause(idle_since);
    }
  }
}

void Progress::pause(Duration idle_since) {
  bool spins = false;
  {
    const LockGuard lock(lock_);
    const Duration time = now();
    check_timeouts(time);
    spins = this->spins(time - idle_since, waiters_.load() > 0);
  }
  if (spins) {
    std::this_thread::yield();
    return;
  }
  wakeup_flags_.sleep(WakeupFlags::Sleeper::engine, [&] {
    // A caller may have made progress since.
    const LockGuard lock(lock_);
    const Duration time = now();
    const auto length = sleep_length(time, time - idle_since, waiters_.load() > 0);
    return stopping_.load() ? WakeupFlags::kNoSleep : length;
  });
}

void Progress::await(const Operation& operation) {
  Turn turn(*this);
  await(operation, turn);
}

void Progress::await(const Operation& operation, Turn& turn) {
  Wait wait(parts_.status(), operation);
  std::optional<Duration> begin;  // of another thread's turn
  while (!operation.finished()) {
    if (!turn.take()) {
      const Duration time = now();
      if (time - begin.value_or(time) > parts_.settings.spin) break;
      if (!begin) begin = time;
      std::this_thread::yield();
      continue;
    }
    lock_.assert_held();
    step_until_finished_or_asked(operation, wait);
    if (operation.finished()) break;
    turn.leave();
    begin = now();
  }
  turn.leave();
  if (operation.finished()) return;
  wait.sleeps();
  await_others(operation, Duration::max());
}

bool Progress::await_for(const Operation& operation, Duration timeout) {
  if (operation.finished()) return true;
  const Wait wait(parts_.status(), operation);
  return await_others(operation, timeout);
}

/// While other threads make progress, or this one does without holding the lock between steps.
bool Progress::await_others(const Operation& operation, Duration timeout) {
  // The engine thread may pause between polls: now a thread is blocked.
  waiters_.fetch_add(1);
  if (parts_.world.topology.nodes() > 1) wake_rank();
  const Duration begin = now();
  Duration waited{};
  do {
    if (!has_thread()) {
      if (!try_step()) std::this_thread::yield();
    } else if (timeout == Duration::max()) {
      operation.state.wait(Operation::kPending, std::memory_order_acquire);
    } else if (waited < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      // An atomic's wait() has no time limit.
      std::this_thread::sleep_for(std::min({waited / 8, kLongestShortPoll, timeout - waited}));
    }
    waited = now() - begin;
  } while (!operation.finished() && waited < timeout);
  waiters_.fetch_sub(1);
  return operation.finished();
}

void Progress::step_until_finished_or_asked(const Operation& operation, Wait& wait) {
  // Yielding may cost a whole time slice of an unrelated process.
  const Duration spinning = parts_.has_core ? Duration(parts_.settings.spin) : kBriefly;
  Duration time = now();
  Duration idle_since = time;
  while (!operation.finished() && !lock_.is_asked_for()) {
    if (step(time)) {
      if (operation.finished()) break;
      idle_since = time = now();
      continue;
    }
    time = now();
    const Duration idle = time - idle_since;
    if (idle < spinning) {
      spin_pause();
    } else if (idle < parts_.settings.spin) {
      std::this_thread::yield();
    } else {
      check_timeouts(time);
      wait.sleeps();
      const PreciseSleep precise;
      wakeup_flags_.sleep(WakeupFlags::Sleeper::caller, [&] {
        lock_.assert_held();
        const auto length = sleep_length(time, idle, /*awaited=*/true);
        const bool leaves = operation.finished() || lock_.is_asked_for();
        return leaves ? WakeupFlags::kNoSleep : length;
      });
      time = now();
    }
  }
}

}  // namespace hora::internal
