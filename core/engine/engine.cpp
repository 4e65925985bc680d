#include "core/engine/engine.h"

#include <spdlog/fmt/fmt.h>

#include <cstdio>

#include "core/base/log.h"

namespace hora::internal {
namespace {

using std::chrono::milliseconds;

/// For ranks to wake, and for leaders, which may look ten times a second, to pass a message on.
constexpr auto kRanksNoticeTime = milliseconds(20);
constexpr auto kNodesNoticeTime = milliseconds(300);

/// For the rank of the first cause to end, and its guard to report that; more where it lives on.
constexpr auto kFailedRankGrace = milliseconds(400);
constexpr auto kLivingRankGrace = std::chrono::seconds(2);

/// Time for the program to print what it has caught.
constexpr auto kPrintGrace = milliseconds(400);

bool ends_by_itself(std::int64_t process) {
  const ProcessState state = process_state(process);
  return state != ProcessState::stopped && state != ProcessState::traced &&
         state != ProcessState::gone;
}

}  // namespace

Engine::Engine(EngineParts parts, std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)),
      parts_(std::move(parts)),
      sets_(parts_,
            [this](Request request) {
              const auto operation = submit(std::move(request));
              wait(*operation);
              return operation->number;
            }),
      progress_(parts_, sets_) {}

std::shared_ptr<Engine> Engine::make(std::unique_ptr<Transport> transport, bool engine_thread) {
  EngineParts parts = transport->parts();
  const std::shared_ptr<Engine> made(new Engine(std::move(parts), std::move(transport)),
                                     [](Engine* engine) {
                                       if (!engine->is_forked()) delete engine;
                                     });
  Engine* const engine = made.get();
  engine->terminate_report_.emplace(engine->parts_.rank, [engine](const std::string& why) {
    if (engine->parts_.flight) engine->parts_.flight->failed(why);
    log_end(engine->parts_.rank, why, engine->is_logged(why));
    engine->end_all(why);
    engine->await_failed_rank();
  });
  engine->parts_.record().set_state(RecordState::initialised);
  descriptors_are_gone();  // from now on
  if (engine_thread) engine->start_thread();
  return made;
}

Engine::~Engine() {
  stop();
  if (transport_ && parts_.trace.trace()) parts_.trace.trace()->close();
}

Engine& Engine::remaining() {
  if (!is_forked()) return *this;
  throw Error(ErrorCode::invalid_use,
              fmt::format("this process was forked from hora's rank {}, which alone can use hora: "
                          "start a program of its own (exec), or leave hora to the parent",
                          parts_.rank),
              parts_.rank);
}

Engine& Engine::running() {
  if (!remaining().is_shut_down()) return *this;
  throw Error(ErrorCode::shut_down,
              fmt::format("hora was shut down on this rank ({}): nothing can be started after "
                          "shutdown()",
                          parts_.rank),
              parts_.rank);
}

std::shared_ptr<Operation> Engine::submit(Request&& request, ProcessSet set) {
  Operations& operations = sets_.engine_of(set, request.name).operations();
  return operations.submit(std::move(request), Caller::goes_on);
}

void Engine::submit_and_wait(Request&& request, ProcessSet set) {
  Operations& operations = sets_.engine_of(set, request.name).operations();
  Progress::Turn turn(progress_);
  turn.take();
  const auto operation = operations.submit(std::move(request), Caller::waits);
  progress_.await(*operation, turn);
  collect(*operation);
}

void Engine::wait(Operation& operation) {
  progress_.await(operation);
  collect(operation);
}

void Engine::synchronize(Operation& operation) {
  wait(operation);
  if (!operation.memory.work()) return;
  operation.memory.work()->synchronize();
  const auto cause = aborted() ? first_cause().get() : std::nullopt;
  if (cause) throw detached(*cause);
}

void Engine::collect(Operation& operation) {
  try {
    operation.owner->collect(operation);
  } catch (const Error&) {
    has_thrown_.store(true);
    throw;
  }
}

void Engine::drop(Operation& operation) {
  progress_.await(operation);
  try {
    operation.owner->collect(operation);
  } catch (const Error& error) {
    log().warn("{}: the handle of {} was dropped and its error lost: {}",
               to_string(identity_of_process(parts_.rank)), tensor_text(operation.name),
               error.what());
    keep_unreported(error, operation);
  }
}

void Engine::keep_unreported(const Error& error, const Operation& failed) {
  const LockGuard lock(mutex_);
  if (!unreported_) unreported_.emplace(error.code(), error.what(), error.rank(), failed.name);
}

std::optional<Error> Engine::unreported_error() const {
  const LockGuard lock(mutex_);
  return unreported_ && !has_thrown_.load() ? std::optional(detached(*unreported_)) : std::nullopt;
}

void Engine::detach(const std::shared_ptr<Operation>& operation) {
  bool is_cancelled = true;
  {
    const LockGuard lock(progress_.lock(), BetweenRounds());
    if (!operation->finished()) is_cancelled = operation->memory.cancel();
  }
  if (!is_cancelled) progress_.await(*operation);
  operation->owner->detach(operation);
}

int Engine::join(ProcessSet set) {
  Operations& operations = sets_.engine_of(set).operations();
  for (const auto& operation : operations.unfinished()) progress_.await(*operation);
  const auto operation = operations.join();
  wait(*operation);
  return operation->number;
}

std::byte* Engine::allocate_on_device(std::size_t bytes) {
  const LockGuard lock(progress_.lock(), BetweenRounds());
  return parts_.device->allocate(bytes);
}

void Engine::release_on_device(std::byte* data) noexcept {
  parts_.device->release(data, [this](const std::function<void()>& step) {
    const LockGuard lock(progress_.lock(), BetweenRounds());
    if (aborted()) return false;
    step();
    return true;
  });
}

void Engine::at_shutdown(std::function<void()> action) {
  const LockGuard lock(mutex_);
  at_shutdown_.push_back(std::move(action));
}

/// For shutdown(), which goes on where a transport has failed.
void Engine::wait_until(const std::function<bool()>& reached) {
  while (!reached() && !aborted()) {
    if (!has_thread() && progress()) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Engine::depart() {
  std::vector<std::shared_ptr<Operation>> open;
  for (const SetEngine* set : sets_.all()) {
    for (auto& operation : set->operations().uncollected()) open.push_back(std::move(operation));
  }
  wait_until([&] { return std::ranges::all_of(open, [](auto& s) { return s->finished(); }); });
  for (const auto& operation : open) {
    if (operation->state.load(std::memory_order_acquire) == Operation::kFailed) {
      keep_unreported(*operation->error, *operation);
    }
  }
  // Each set is closed in the order of its own decisions.
  const std::vector<SetEngine*> sets = sets_.all(/*removed_too=*/false);
  const Error closed(ErrorCode::shut_down,
                     fmt::format("hora was shut down on this rank ({}): no collective can follow "
                                 "shutdown()",
                                 parts_.rank),
                     parts_.rank);
  for (SetEngine* set : sets) {
    // From here on a leader polls for the others as if a tensor of its own were waiting.
    set->operations().depart(closed);
  }
  parts_.status().departed.store(now().count());
  progress_.wake_thread();
  wait_until([&] { return std::ranges::all_of(sets, &SetEngine::all_departed); });
  wait_until([&] {
    const LockGuard lock(progress_.lock(), BetweenRounds());
    return !progress_.messages_left();
  });
}

void Engine::shutdown() {
  remaining();
  if (shut_down_.exchange(true)) return;
  if (descriptors_are_gone()) {
    abort(
        "the program has closed all descriptors, those of MPI and hora among them, before "
        "shutdown(): close only what the program has opened");
  }
  parts_.record().set_state(RecordState::in_shutdown);
  depart();
  stop();
  if (Trace* const trace = parts_.trace.trace()) trace->close();
  if (parts_.settings.report) {
    // Asked for, so that no level of the log hides it.
    std::fputs(arrivals_text().c_str(), stderr);
  }
  if (aborted()) end_after_failure();
  std::vector<std::function<void()>> actions;
  {
    const LockGuard lock(mutex_);
    actions.swap(at_shutdown_);
  }
  for (const auto& action : actions) action();
  sets_.disconnect();
  transport_->disconnect();
  parts_.record().set_state(RecordState::shut_down);
  if (const auto unreported = unreported_error()) {
    throw Error(unreported->code(),
                fmt::format("{} of {} has failed, and no call before the end of shutdown() said "
                            "so: {}. Wait for every handle",
                            tensor_text(unreported->tensor()),
                            to_string(identity_of_process(parts_.rank)), unreported->what()),
                parts_.rank, unreported->tensor());
  }
}

void Engine::end_after_failure() noexcept {
  await_failed_rank();
  const auto cause = first_cause().get();
  abort(cause ? std::string("in shutdown(), after an error: ") + cause->what()
              : "in shutdown(), after an error");
}

void Engine::end_all(const std::string& why) noexcept {
  try {
    const Error error(
        ErrorCode::transport,
        fmt::format("{} has ended the job: {}", to_string(identity_of_process(parts_.rank)), why),
        parts_.rank);
    const NodeControlBlock& node = *parts_.world.control_block;
    // Another cause that was published before may still be on its way to other nodes.
    if (node.first_cause().publish(error)) {
      for (int r = 0; r < node.local_size(); ++r) node.wakeup_flags().signal(r);
      progress_.wake_thread();
    }
    // The leader may be this rank.
    if (!has_thread()) progress();
    const bool several = parts_.world.topology.nodes() > 1;
    std::this_thread::sleep_for(several ? kNodesNoticeTime : kRanksNoticeTime);
  } catch (const std::exception&) {
    // Memory is exhausted: the others find a cause of their own.
  }
}

/// Where the first cause is another rank's, returns when that rank's process has ended, if it is of
/// this host, or some tenths of a second later: the first rank that ends is the one whose status
/// the job has, and MPI ends all others, with their guards, at once.
void Engine::await_failed_rank() const {
  const auto cause = first_cause().get();
  if (!cause || cause->rank() == parts_.rank) return;
  const auto index = static_cast<std::size_t>(cause->rank());
  if (index < parts_.processes.size() && parts_.processes[index].host == host_name()) {
    const auto limit = std::chrono::steady_clock::now() + kLivingRankGrace;
    while (ends_by_itself(parts_.processes[index].pid) &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  std::this_thread::sleep_for(kFailedRankGrace);
}

void Engine::abort(const std::string& why) noexcept {
  log_end(parts_.rank, why);
  if (parts_.flight) parts_.flight->failed(why);
  parts_.abort();
  std::terminate();
}

void Engine::abandon(std::shared_ptr<Engine> engine) noexcept {
  try {
    const std::string known = error_in_flight();
    const std::string why = known.empty() ? "an exception left the scope of hora's context" : known;
    log_end(engine->parts_.rank,
            known.empty()
                ? "an exception is leaving the scope of hora's context; a catch clause can print it"
                : "an exception is leaving the scope of hora's context: " + known,
            !known.empty() && engine->is_logged(known));
    if (engine->parts_.flight) engine->parts_.flight->failed(why);
    engine->end_all(why);
    static auto& abandoned = *new std::vector<std::shared_ptr<Engine>>;  // never destroyed
    abandoned.push_back(engine);
    engine->transport_->abort_at_exit(kPrintGrace,
                                      [plain = engine.get()] { plain->await_failed_rank(); });
  } catch (const std::exception& error) {
    engine->abort(error.what());
  }
}

}  // namespace hora::internal
