/// The process that mpirun starts in the place of ssh: it asks the launcher, through this host's
/// agent, to start a daemon on another host.
///
/// mpirun calls its remote shell as it would call ssh: [options] host word... The words, joined by
/// blanks, are text for a shell on that host. Flavours use little of a shell's language:
///   Open MPI 4   ` /usr/bin/orted -mca ess "env" ...`
///   Open MPI 5   `PRTE_PREFIX=/x;export PRTE_PREFIX;LD_LIBRARY_PATH=/x/lib:$LD_LIBRARY_PATH;
///                export LD_LIBRARY_PATH;/x/bin/prted --prtemca ess "env" ...`
///   hydra        `"/usr/bin/hydra_pmi_proxy" --control-port a:4711 ...`
/// That much is read here, as POSIX defines it (Shell Command Language, 2.2 Quoting), and
/// everything else refused, so that the daemon can be started without a shell.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/launch/command/command.h"

namespace hora::launch {

struct RemoteShellCall {
  std::string host;
  std::string text;  ///< for the shell that does not exist
};

/// From the arguments that mpirun gave its remote shell, after those of horarun's own. Options
/// before the host (ssh's `-x`) are dropped. Pure.
tl::expected<RemoteShellCall, std::string> parse_remote_shell_call(
    std::span<const std::string> arguments);

/// The value of a variable on the host where the command shall run; empty where it has none.
using Lookup = std::function<std::string(std::string_view name)>;

/// Longer texts are refused (mpirun's are some hundred bytes and a list of hosts).
inline constexpr std::size_t kLongestRemoteText = std::size_t{256} << 10;

/// At least one argument; variables in the order of their assignments, each name once. Pure but for
/// `lookup`.
tl::expected<Command, std::string> parse_remote_command(std::string_view text,
                                                        const Lookup& lookup);

/// `arguments` are those that mpirun gives its remote shell. Returns the exit status at once: 0
/// where the agent was asked.
int run_remote_shell(std::span<const std::string> arguments);

}  // namespace hora::launch
