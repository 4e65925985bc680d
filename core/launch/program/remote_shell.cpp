#include "core/launch/program/remote_shell.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/launch/command/remote_command.h"
#include "core/launch/control/report_pipe.h"

namespace hora::launch {
namespace {

int refuse(const std::string& reason) {
  std::fprintf(stderr, "horarun --remote-shell: %s\n", reason.c_str());
  return 1;
}

}  // namespace

int run_remote_shell(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const char* text = std::getenv(kAgentVariable);
  const auto address = parse_pipe_address(text == nullptr ? "" : text);
  if (!address) return refuse("it is started by mpirun below horarun alone");
  const auto pipe = open_report_pipe(*address);
  if (!pipe) return refuse(pipe.error());
  const auto call = parse_remote_shell_call(arguments);
  if (!call) return refuse(call.error());
  for (std::size_t sent = 0; sent < call->text.size(); sent += kMostOutputBytes) {
    StartRemote request;
    request.sender = ::getpid();
    request.host = call->host;
    request.text = call->text.substr(sent, kMostOutputBytes);
    request.complete = sent + kMostOutputBytes >= call->text.size();
    if (!send_report(*pipe, request)) return refuse("the agent has ended");
  }
  return 0;
}

}  // namespace hora::launch
