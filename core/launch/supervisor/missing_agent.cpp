#include "core/launch/supervisor/missing_agent.h"

#include <sys/wait.h>

#include "core/launch/command/command.h"

namespace hora::launch {
namespace {

constexpr int kFailureOfSsh = 255;
constexpr int kCannotExecute = 126, kNotFound = 127;

/// A command that begins with this path is the agent itself, on this host.
bool is_local(std::span<const std::string> command) {
  return command.size() == 2;
}

std::string what_to_do(const LostAgent& lost, std::span<const std::string> command) {
  const std::string& program = command.front();
  if (is_local(command)) return {};
  if (!lost.status) return "install " + program + " on this host";
  const int status = WIFEXITED(*lost.status) ? WEXITSTATUS(*lost.status) : -1;
  if (status == kNotFound || status == kCannotExecute) {
    return "horarun must be there under this very path, with its libraries: install hora on that "
           "host, too, or in a folder that all hosts share";
  }
  if (program == "srun") return "is the node up (sinfo), and is this job's allocation still there?";
  if (status == kFailureOfSsh) {
    return "ssh must log in there without a question: is the name right, the host up, its sshd "
           "reachable, this user's key there? --ssh-port and --ssh-identity-file name others";
  }
  return "this command must go through: with --version in place of --agent it prints horarun's "
         "version";
}

}  // namespace

std::string tried_text(std::span<const std::string> command) {
  if (command.empty()) return {};
  return "; tried: " + as_shell_line({{command.begin(), command.end()}, {}});
}

std::string start_advice(const LostAgent& lost, std::span<const std::string> command) {
  if (command.empty()) return {};
  const std::string advice = what_to_do(lost, command);
  return tried_text(command) + (advice.empty() ? "" : "; " + advice);
}

}  // namespace hora::launch
