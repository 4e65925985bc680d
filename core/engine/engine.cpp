/// Engine: construction, submitting, making progress and departing. engine_sets.cpp: process sets;
/// engine_wait.cpp: waiting for results; engine_rest.cpp: the thread.
#include "core/engine/engine.h"

#include <algorithm>
#include <utility>

#include "core/identity.h"
#include "core/log.h"

namespace hora {

Duration now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

Engine::Engine(EngineParts parts)
    : parts_(std::move(parts)),
      wakeup_flags_(parts_.world.control_block->wakeup_flags()),
      single_node_(parts_.world.topology.nodes() == 1),
      shared_{.parts = parts_,
              .sets_change =
                  [this](auto submission) {
                    progress_lock_.assert_held();
                    on_sets_change(std::move(submission));
                  },
              .waits_on =
                  [this](const std::string& name) {
                    progress_lock_.assert_held();
                    return waits_on(name);
                  }},
      progress_lock_(wakeup_flags_, parts_.world.control_block->local_rank()) {
  Set& world = *sets_.emplace_back(std::make_unique<Set>());
  for (const auto& ranks : parts_.world.topology.ranks_of_node) {
    world.ranks.insert(world.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(world.ranks.begin(), world.ranks.end());
  world.engine = std::make_unique<SetEngine>(parts_.world, shared_);
  world_ = world.engine.get();
  engines_.push_back(world_);
}

Engine::~Engine() {
  stop();
}

Error Engine::named(const Submission& failed) {
  const Error& error = *failed.error;
  return {error.code(), error.what(), error.rank(), failed.name};
}

std::shared_ptr<Submission> Engine::submit(Request request, ProcessSet set) {
  SetEngine& engine = set_engine(set, request.name);
  return engine.submit(std::move(request), Caller::goes_on);
}

std::byte* Engine::allocate_on_device(std::size_t bytes) {
  const BetweenRounds lock(progress_lock_);
  return parts_.device->allocate(bytes);
}

void Engine::release_on_device(std::byte* data) noexcept {
  const BetweenRounds lock(progress_lock_);
  parts_.device->release(data);
}

bool Engine::make_progress() {
  if (poisoned()) return false;
  try {
    return advance();
  } catch (const Error& error) {
    poison(error);
  } catch (const std::exception& error) {
    poison(Error(ErrorCode::transport, std::string("hora's engine failed: ") + error.what(),
                 parts_.rank));
  }
  return true;
}

bool Engine::advance() {
  bool progress = false;
  // By index: the world's decisions can add to the list.
  for (std::size_t i = 0; i < engines_.size(); ++i) progress |= engines_[i]->make_progress();
  progress |= advance_sets_changes();
  if (parts_.device) device_busy_ = parts_.device->check();
  return progress;
}

void Engine::poison(const Error& error) {
  log().error("{}: {}", to_string(identity_of_process(parts_.rank)), error.what());
  for (SetEngine* engine : engines_) engine->close(error);
  shared_.poisoned.store(true);
  // First: a caller that gets the error may free the memory that a device works on.
  if (parts_.device) parts_.device->abort();
  for (SetEngine* engine : engines_) engine->fail_all(error);
}

bool Engine::has_pending_work() const {
  if (poisoned()) return false;
  return std::any_of(engines_.begin(), engines_.end(),
                     [](auto* e) { return e->has_pending_work(); });
}

bool Engine::is_running() const {
  return std::any_of(engines_.begin(), engines_.end(), [](auto* e) { return e->is_running(); });
}

bool Engine::data_travels() const {
  return !sets_changes_.empty() ||
         std::any_of(engines_.begin(), engines_.end(), [](auto* e) { return e->polls(); });
}

/// True while something is to be received or sent of which there is no signal.
bool Engine::must_poll() {
  if (poisoned()) return false;
  try {
    return data_travels() || std::any_of(engines_.begin(), engines_.end(), [](auto* e) {
             return e->messages_left() || (e->leads_several() && e->waits_for_peers());
           });
  } catch (const Error& error) {
    poison(error);
    return false;
  }
}

void Engine::await_done() {
  for (SetEngine* engine : engines_) engine->control_block().await_done(engine->awaited());
}

void Engine::report_stalls() {
  const SharedGuard lock(sets_lock_);
  for (const auto& set : sets_) {
    if (set->engine) set->engine->report_stalls();
  }
}

bool Engine::progress() {
  bool progress = false;
  if (!progress_lock_.try_lock()) return false;
  {
    const LockGuard lock(progress_lock_, std::adopt_lock);
    if (stopping_.load()) return false;
    progress = make_progress();
  }
  report_stalls();
  return progress;
}

void Engine::start_thread() {
  thread_ = std::thread([this] { run_thread(); });
}

void Engine::stop() {
  stopping_.store(true);
  if (!thread_.joinable()) return;
  wakeup_flags_.wake_engine();
  thread_.join();
}

void Engine::depart() {
  std::vector<std::shared_ptr<Submission>> open;
  {
    const SharedGuard lock(sets_lock_);
    for (const auto& set : sets_) {
      if (!set->engine) continue;
      for (auto& submission : set->engine->unfinished()) {
        if (!submission->orphaned) open.push_back(std::move(submission));
      }
    }
  }
  const auto wait_until = [&](auto&& reached, const char* what) {
    Duration warn_at = now() + parts_.settings.stall_warning;
    while (!reached() && !poisoned()) {
      if (!has_thread() && progress()) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (parts_.settings.stall_warning.count() == 0 || now() < warn_at) continue;
      log().warn("{} is in shutdown and waits for {}", to_string(identity_of_process(parts_.rank)),
                 what);
      warn_at += parts_.settings.stall_warning;
    }
  };
  wait_until(
      [&] { return std::all_of(open.begin(), open.end(), [](auto& s) { return s->finished(); }); },
      "its own unfinished collectives");
  for (const auto& submission : open) {
    if (submission->state.load(std::memory_order_acquire) != Submission::kFailed) continue;
    unreported_.keep(named(*submission));
  }
  // Each set is closed in the order of its own decisions.
  std::vector<SetEngine*> sets;
  {
    const SharedGuard lock(sets_lock_);
    for (const auto& set : sets_) {
      if (set->engine && !set->removed) sets.push_back(set->engine.get());
    }
  }
  for (SetEngine* set : sets) {
    set->close(Error(ErrorCode::shut_down,
                     "hora was shut down on this rank (" + std::to_string(parts_.rank) +
                         "): no collective can follow shutdown()",
                     parts_.rank));
    // From here on a leader polls for the others as if a tensor of its own were waiting.
    set->expect_peers();
    set->announce_departure();
  }
  wakeup_flags_.wake_engine();
  wait_until(
      [&] {
        return std::all_of(sets.begin(), sets.end(), [](auto* s) { return s->all_departed(); });
      },
      "ranks that have not called it yet");
  wait_until(
      [&] {
        const BetweenRounds lock(progress_lock_);
        return std::none_of(engines_.begin(), engines_.end(),
                            [](auto* e) { return e->messages_left(); });
      },
      "its last messages to leave");
}

Statistics Engine::statistics() const {
  const SharedGuard lock(sets_lock_);
  Statistics sum;
  for (const auto& set : sets_) {
    if (!set->engine) continue;
    const Statistics one = set->engine->statistics();
    sum.operations += one.operations;
    sum.bytes += one.bytes;
    sum.in_flight += one.in_flight;
    sum.batches += one.batches;
  }
  return sum;
}

}  // namespace hora
