#include "core/launch/agent/host_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "core/launch/command/remote_shell.h"
#include "core/launch/control/channel.h"
#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

constexpr int kCannotStart = 127;  // as a shell has it

/// Of the last in `environment` ("NAME=VALUE"), else this process's; empty where there is none.
std::string value_of(std::string_view name, const std::vector<std::string>& environment) {
  const std::string start = std::string(name) + "=";
  for (auto variable = environment.rbegin(); variable != environment.rend(); ++variable) {
    if (variable->starts_with(start)) return variable->substr(start.size());
  }
  const char* own = std::getenv(std::string(name).c_str());
  return own == nullptr ? "" : own;
}

/// Without its streams; an error says what is wrong with the request.
tl::expected<ChildOptions, std::string> child_of(const Start& request) {
  ChildOptions child;
  child.environment = request.environment;
  child.arguments = request.arguments;
  child.folder = request.folder;
  child.dies_with_parent = true;
  if (!child.arguments.empty()) return child;
  const auto command = parse_remote_command(
      request.text, [&](std::string_view name) { return value_of(name, request.environment); });
  if (!command) return tl::unexpected(command.error());
  child.arguments = command->arguments;
  for (const Variable& variable : command->environment) {
    child.environment.push_back(variable.name + "=" + variable.value);
  }
  return child;
}

}  // namespace

StartedProcesses::StartedProcesses(EventLoop& loop, std::function<void(const Message&)> send)
    : loop_(loop), send_(std::move(send)) {}

StartedProcesses::~StartedProcesses() {
  for (const auto& [id, process] : processes_) {
    loop_.forget(process.output.get());
    loop_.forget(process.error.get());
  }
}

void StartedProcesses::start(const Start& request, const std::vector<std::string>& variables) {
  auto child = child_of(request);
  if (!child) return refuse(request.process, child.error());
  child->environment.insert(child->environment.end(), variables.begin(), variables.end());
  UniqueFd input;
  if (!request.input.empty()) {
    input.reset(::open(request.input.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  }
  child->input = input.get();
  Pipe output = make_pipe(), error = make_pipe();
  child->output = output.write.get();
  child->error = error.write.get();
  const auto started = start_child(*child);
  if (!started) return refuse(request.process, started.error());
  Process& process = processes_[*started];
  process.number = request.process;
  process.output = std::move(output.read);
  process.error = std::move(error.read);
  for (const bool is_error : {false, true}) {
    const UniqueFd& descriptor = is_error ? process.error : process.output;
    ::fcntl(descriptor.get(), F_SETFL, O_NONBLOCK);
    loop_.watch(descriptor.get(), POLLIN,
                [this, id = *started, is_error](short) { on_output(id, is_error); });
  }
}

void StartedProcesses::refuse(std::uint32_t number, const std::string& reason) {
  ProcessOutput output;
  output.process = number;
  output.error = true;
  output.bytes.assign(reason.begin(), reason.end());
  send_(output);
  ProcessEnded ended;
  ended.process = number;
  ended.status = kCannotStart << 8;
  send_(ended);
}

void StartedProcesses::on_output(pid_t id, bool error) {
  const auto found = processes_.find(id);
  if (found == processes_.end() || pass_on(found->second, error) != 0) return;
  loop_.forget((error ? found->second.error : found->second.output).get());
}

/// What one read() gives, and its result.
ssize_t StartedProcesses::pass_on(const Process& process, bool error) {
  std::array<std::uint8_t, 4096> bytes;
  const UniqueFd& descriptor = error ? process.error : process.output;
  const ssize_t count = ::read(descriptor.get(), bytes.data(), bytes.size());
  if (count <= 0) return count;
  ProcessOutput message;
  message.process = process.number;
  message.error = error;
  message.bytes.assign(bytes.begin(), bytes.begin() + count);
  send_(message);
  return count;
}

void StartedProcesses::on_ended(pid_t id, int status) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  Process& process = found->second;
  for (const bool error : {false, true}) {
    while (pass_on(process, error) > 0) {
    }
    loop_.forget((error ? process.error : process.output).get());
  }
  ProcessEnded ended;
  ended.process = process.number;
  ended.status = status;
  processes_.erase(found);
  send_(ended);
}

RunningRanks::RunningRanks(EventLoop& loop, std::function<void(int rank)> on_guard_ended)
    : loop_(loop), on_guard_ended_(std::move(on_guard_ended)) {}

RunningRanks::~RunningRanks() {
  for (const auto& [number, rank] : ranks_) loop_.forget(rank.guard.get());
}

void RunningRanks::add(const RankStarted& started) {
  remove(started.rank);
  Rank& rank = ranks_[started.rank];
  rank.process = static_cast<pid_t>(started.pid);
  rank.guard_process = static_cast<pid_t>(started.guard);
  rank.guard = open_process(rank.guard_process);
  if (!rank.guard) return;
  loop_.watch(rank.guard.get(), POLLIN,
              [this, number = started.rank](short) { on_guard_ended_(number); });
}

void RunningRanks::remove(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  loop_.forget(found->second.guard.get());
  ranks_.erase(found);
}

std::optional<RankEnded> RunningRanks::kill_unguarded(int number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return std::nullopt;
  const Rank& rank = found->second;
  ::kill(rank.process, SIGKILL);
  RankEnded ended;
  ended.rank = number;
  ended.pid = rank.process;
  ended.status = SIGKILL;
  ended.ended_ns = wall_clock_ns();
  ended.lived_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - rank.started).count());
  ended.failure = "its guard (horarun --guard, pid " + std::to_string(rank.guard_process) +
                  " of its host) was killed";
  ended.guard_killed = true;
  remove(number);
  return ended;
}

bool RunningRanks::has(pid_t process) const {
  return std::ranges::any_of(ranks_,
                             [&](const auto& each) { return each.second.process == process; });
}

void RunningRanks::signal(int number, int except) const {
  for (const auto& [rank, process] : ranks_) {
    if (rank != except) ::kill(process.guard_process, number);
  }
}

void RunningRanks::resume() const {
  for (const auto& [number, rank] : ranks_) ::kill(rank.process, SIGCONT);
}

void RunningRanks::kill() const {
  signal(kill_rank_signal(), -1);
}

namespace {

std::vector<ProcessStat> all_processes() {
  std::vector<ProcessStat> result;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::int64_t pid = 0;
    const auto [rest, no_number] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (no_number != std::errc{} || rest != name.data() + name.size()) continue;
    if (auto stat = internal::process_stat(pid)) result.push_back(std::move(*stat));
  }
  return result;
}

}  // namespace

std::vector<ProcessStat> descendants_of(pid_t ancestor, const std::vector<ProcessStat>& all) {
  std::multimap<std::int64_t, const ProcessStat*> children;
  for (const ProcessStat& process : all) children.emplace(process.parent, &process);
  std::vector<ProcessStat> result;
  std::vector<std::int64_t> parents{ancestor};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      if (child->second->pid == ancestor) continue;
      parents.push_back(child->second->pid);
      if (child->second->state != internal::ProcessState::gone) result.push_back(*child->second);
    }
  }
  return result;
}

std::vector<ProcessStat> descendants_of(pid_t ancestor) {
  return descendants_of(ancestor, all_processes());
}

void kill_descendants(std::chrono::milliseconds limit) noexcept {
  try {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      const auto left = descendants_of(::getpid());
      if (left.empty()) break;
      for (const ProcessStat& process : left) ::kill(static_cast<pid_t>(process.pid), SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      ::usleep(5000);
    }
  } catch (...) {  // no memory: the kernel ends what is left with the session
  }
}

}  // namespace hora::launch
