#include "core/flight/flight_recorder.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <string_view>

#include "core/base/log.h"
#include "core/flight/record_reader.h"

namespace hora::internal {
namespace {

bool is_off(const char* variable) {
  return variable && std::string_view(variable) == "off";
}

bool is_watched(const char* variable) {
  return variable && std::string_view(variable) == "watched";
}

std::optional<RecordMemory> memory_of(const char* variable) {
  if (is_off(variable)) return std::nullopt;
  if (variable && !is_watched(variable)) {
    auto given = RecordMemory::open(variable);
    if (given) return std::move(*given);
    log().warn("{}={}: {}; this rank keeps its record to itself", kRecordVariable, variable,
               given.error());
  }
  auto own = RecordMemory::anonymous();
  if (own) return std::move(*own);
  log().warn("there is no flight record on this rank: {}", own.error());
  return std::nullopt;
}

constexpr std::array<int, 2> kRelayed = {SIGUSR1, SIGUSR2};

/// Handlers are the process's. Written before a handler that reads them is installed, and never
/// freed: a signal may be on its way to it still when it is removed.
struct Relay {
  std::atomic<pid_t> guard{0};
  std::atomic<pid_t> owner{0};
  std::array<struct sigaction, kRelayed.size()> program = {};
  std::array<bool, kRelayed.size()> installed = {};
};
Relay relay;

std::size_t index_of(int signal) noexcept {
  return signal == kRelayed[0] ? 0 : 1;
}

bool was_sent(const siginfo_t* info) noexcept {
  return info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
}

void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) noexcept {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
  const int error = errno;
  const pid_t guard = relay.guard.load();
  // A forked child's signals are its own.
  const bool concerns_all = guard > 0 && ::getpid() == relay.owner.load();
  if (concerns_all && was_sent(info) && info->si_pid != guard) ::kill(guard, signal);
  errno = error;
  call(relay.program[index_of(signal)], signal, info, context);
}

bool has_handler(const struct sigaction& action) noexcept {
  if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction != nullptr;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == pass_on;
}

}  // namespace

FlightRecorder::FlightRecorder(const char* variable)
    : memory_(memory_of(variable)), counts_arrivals_(!is_off(variable)) {
  if (memory_) writer_ = RecordWriter(memory_->layout());
  if (memory_ && is_watched(variable)) memory_->layout().arrivals.wanted.store(1);
  writer_.begin();
}

std::int64_t FlightRecorder::guard() const noexcept {
  return memory_ ? std::max<std::int64_t>(0, memory_->layout().header.guard.load()) : 0;
}

void FlightRecorder::write_failures_to(const std::string& folder) {
  if (folder.empty() || !memory_ || guard() > 0) return;
  if (const auto made = make_record_folder(folder); !made) {
    throw Error(ErrorCode::invalid_setting, "HORA_RECORD_DIRECTORY: " + made.error());
  }
  folder_ = folder;
}

void FlightRecorder::failed(const Error& error) noexcept {
  writer_.fail(error.what(), error.code());
  write_once();
}

void FlightRecorder::failed_elsewhere(const Error& error) noexcept {
  writer_.fail(error.what(), error.code(), /*failed_elsewhere=*/true);
  write_once();
}

void FlightRecorder::failed(const std::string& cause) noexcept {
  writer_.fail(cause);
  write_once();
}

void FlightRecorder::write_once() noexcept {
  if (folder_.empty() || written_.exchange(true)) return;
  try {
    const auto record = read_record(memory_->layout(), record_now());
    const auto path = record ? write_record(*record, folder_) : tl::unexpected(record.error());
    if (path) {
      log().error("what this rank did last is in {}", *path);
    } else {
      log().warn("what this rank did last is lost: {}", path.error());
    }
  } catch (const std::exception&) {
    // Neither the record nor a message can be written; the failure itself is reported elsewhere.
  }
}

SignalRelay::SignalRelay(pid_t guard) noexcept {
  relay.owner.store(::getpid());
  relay.guard.store(guard);
  for (std::size_t i = 0; i < kRelayed.size(); ++i) {
    struct sigaction current {};
    if (::sigaction(kRelayed[i], nullptr, &current) != 0) continue;
    // Where another handler calls the one of an earlier relay, that one is still in place.
    if (!has_handler(current) || is_ours(current)) continue;
    relay.program[i] = current;
    struct sigaction action = current;
    action.sa_sigaction = pass_on;
    action.sa_flags |= SA_SIGINFO;
    relay.installed[i] = ::sigaction(kRelayed[i], &action, nullptr) == 0;
  }
}

SignalRelay::~SignalRelay() {
  relay.guard.store(0);
  for (std::size_t i = 0; i < kRelayed.size(); ++i) {
    struct sigaction current {};
    if (!relay.installed[i] || ::sigaction(kRelayed[i], nullptr, &current) != 0) continue;
    if (is_ours(current)) ::sigaction(kRelayed[i], &relay.program[i], nullptr);
    relay.installed[i] = false;
  }
}

}  // namespace hora::internal
