#include "core/launch/agent/started_processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "core/launch/command/remote_shell.h"
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

}  // namespace hora::launch
