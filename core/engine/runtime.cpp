#include "core/engine/runtime.h"

#include <hora/error.h>

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "core/base/diagnostics.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/flight/flight_recorder.h"

namespace hora::internal {
namespace {

/// Time for the program to print what it has caught.
constexpr auto kGrace = std::chrono::milliseconds(400);

}  // namespace

Runtime::Runtime(std::unique_ptr<Transport> transport, bool engine_thread)
    : transport_(std::move(transport)),
      parts_(transport_->parts()),
      node_(parts_.world.topology.node_of(parts_.rank)),
      local_rank_(parts_.world.topology.local_rank_of(parts_.rank)),
      engine_(parts_),
      terminate_report_(
          parts_.rank,
          {.is_logged = [this](const std::string& why) { return engine_.is_logged(why); },
           .record =
               [this](const std::string& why) {
                 if (parts_.flight) parts_.flight->failed(why);
               },
           .notify_peers =
               [this](const std::string& why) {
                 notify_peers(why);
                 engine_.await_failed_rank();
               }}) {
  note_state(RecordState::initialised);
  descriptors_are_gone();  // from now on
  if (engine_thread) engine_.start_thread();
}

std::shared_ptr<Runtime> Runtime::make(std::unique_ptr<Transport> transport, bool engine_thread) {
  return {new Runtime(std::move(transport), engine_thread), [](Runtime* runtime) {
            if (!runtime->is_forked()) delete runtime;
          }};
}

Runtime::~Runtime() {
  engine_.stop();
  if (Trace* const trace = parts_.trace.trace()) trace->close();
}

void Runtime::check_owner() const {
  if (!is_forked()) return;
  throw Error(ErrorCode::invalid_use,
              "this process was forked from hora's rank " + std::to_string(parts_.rank) +
                  ", which alone can use hora: start a program of its own (exec), or leave hora "
                  "to the parent",
              parts_.rank);
}

void Runtime::check_running() const {
  check_owner();
  if (!is_shut_down()) return;
  throw Error(ErrorCode::shut_down,
              "hora was shut down on this rank (" + std::to_string(parts_.rank) +
                  "): nothing can be started after shutdown()",
              parts_.rank);
}

Engine& Runtime::engine() {
  check_running();
  return engine_;
}

NodeMemory& Runtime::memory() {
  check_running();
  return *parts_.world.memory;
}

Engine& Runtime::remaining_engine() {
  check_owner();
  return engine_;
}

NodeMemory& Runtime::remaining_memory() {
  check_owner();
  return *parts_.world.memory;
}

std::uint32_t Runtime::next_instance_number(ProcessSet set) {
  const LockGuard lock(instances_lock_);
  return instances_[set]++;
}

void Runtime::at_shutdown(std::function<void()> action) {
  check_running();
  const LockGuard lock(instances_lock_);
  at_shutdown_.push_back(std::move(action));
}

void Runtime::shutdown() {
  check_owner();
  if (shut_down_.exchange(true)) return;
  if (descriptors_are_gone()) {
    abort(
        "the program has closed all descriptors, those of MPI and hora among them, before "
        "shutdown(): close only what the program has opened");
  }
  note_state(RecordState::in_shutdown);
  engine_.depart();
  engine_.stop();
  if (Trace* const trace = parts_.trace.trace()) trace->close();
  if (parts_.settings.report) {
    // Asked for, so that no level of the log hides it.
    std::fputs(engine_.arrivals_text().c_str(), stderr);
  }
  if (engine_.poisoned()) end_after_failure();
  std::vector<std::function<void()>> actions;
  {
    const LockGuard lock(instances_lock_);
    actions.swap(at_shutdown_);
  }
  for (const auto& action : actions) action();
  engine_.disconnect_sets();
  transport_->disconnect();
  note_state(RecordState::shut_down);
  if (const auto unreported = engine_.unreported_error()) {
    throw Error(
        unreported->code(),
        tensor_text(unreported->tensor()) + " of " + to_string(identity_of_process(parts_.rank)) +
            " has failed, and no call before the end of shutdown() said so: " + unreported->what() +
            ". Wait for every handle",
        parts_.rank, unreported->tensor());
  }
}

void Runtime::end_after_failure() noexcept {
  engine_.await_failed_rank();
  const auto cause = engine_.failure();
  abort(cause ? std::string("in shutdown(), after an error: ") + cause->what()
              : "in shutdown(), after an error");
}

void Runtime::abort(const std::string& why) noexcept {
  log_end(why);
  if (parts_.flight) parts_.flight->failed(why);
  transport_->abort();
  std::terminate();
}

void Runtime::abandon(std::shared_ptr<Runtime> runtime) noexcept {
  try {
    const std::string known = error_in_flight();
    if (known.empty() || !runtime->engine_.is_logged(known)) {
      runtime->log_end("an exception is leaving the scope of hora's context" +
                       (known.empty() ? "; a catch clause can print it" : ": " + known));
    }
    const std::string why = known.empty() ? "an exception left the scope of hora's context" : known;
    if (runtime->parts_.flight) runtime->parts_.flight->failed(why);
    runtime->notify_peers(why);
    static auto& abandoned = *new std::vector<std::shared_ptr<Runtime>>;  // never destroyed
    abandoned.push_back(runtime);
    runtime->transport_->abort_at_exit(
        kGrace, [&engine = runtime->engine_] { engine.await_failed_rank(); });
  } catch (const std::exception& error) {
    runtime->abort(error.what());
  }
}

void Runtime::note_state(RecordState state) const noexcept {
  if (parts_.flight) parts_.flight->writer().set_state(state);
}

void Runtime::note_phase(std::string_view phase) {
  check_running();
  engine_.note_phase(phase);
  if (parts_.flight) parts_.flight->writer().note_phase(phase);
}

/// An exception ends this rank, and with it the job: the others end with its text.
void Runtime::notify_peers(const std::string& why) noexcept {
  try {
    engine_.end_all(Error(
        ErrorCode::transport,
        to_string(identity_of_process(parts_.rank)) + " has ended the job: " + why, parts_.rank));
  } catch (const std::exception&) {
    // Memory is exhausted: the others find a cause of their own.
  }
}

void Runtime::log_end(const std::string& why) const noexcept {
  try {
    log().critical("{} ends the job: {}", to_string(identity_of_process(parts_.rank)), why);
    log().flush();
  } catch (...) {
    // Logging has failed, which must not keep the job from ending.
  }
}

}  // namespace hora::internal
