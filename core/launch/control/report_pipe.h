/// How guards and other processes below an agent reach it: they open its pipe through /proc and
/// write whole messages into it. No socket, no file; gone with the agent.
/// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/launch/control/child_process.h"
#include "core/launch/control/messages.h"

namespace hora::launch {

/// The variable by which an agent's descendants know its pipe: "PID:DESCRIPTOR:INODE".
inline constexpr char kAgentVariable[] = "HORARUN_AGENT";

struct PipeAddress {
  pid_t process = 0;
  int descriptor = -1;
  unsigned long inode = 0;  ///< of the pipe: tells another process of that number apart
};
std::string to_string(const PipeAddress& address);
std::optional<PipeAddress> parse_pipe_address(std::string_view text);

/// The address of a pipe's writing end in this process.
PipeAddress address_of(const UniqueFd& write_end);

/// The agent's pipe, to write into. An error says why the agent cannot be reached.
tl::expected<UniqueFd, std::string> open_report_pipe(const PipeAddress& address);

/// Waits while the pipe is full; false where the agent is gone. The message is at most PIPE_BUF
/// with its frame (throws std::length_error), so that those of several processes do not mix.
bool send_report(const UniqueFd& pipe, const Message& message);

}  // namespace hora::launch
