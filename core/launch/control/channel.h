/// The ways of messages, over descriptors: between the launcher and an agent, in both directions
/// and without blocking (Channel); from guards and other processes below an agent to it, through
/// its pipe, which they open through /proc to write whole messages into it. No socket, no file; the
/// pipe is gone with the agent. Thread rule: one thread; of a channel that of its loop.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"

namespace hora::launch {

/// Messages in both directions.
class Channel {
 public:
  using OnMessage = std::function<void(Message&&)>;
  /// The other side is gone, or has sent what is no message (`reason` says what). Called once,
  /// after all messages before it; nothing is sent or received after it.
  using OnEnd = std::function<void(const std::string& reason)>;

  /// `in` and `out` may be the same descriptor. The loop outlives the channel. With `seals` every
  /// message in both directions is encrypted.
  Channel(EventLoop& loop, UniqueFd in, UniqueFd out, OnMessage on_message, OnEnd on_end,
          std::optional<SealPair> seals = std::nullopt);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Queued where the other side is slow.
  void send(const Message& message);
  /// Bytes that are queued: the sender stops reading its own sources above a limit.
  std::size_t queued() const noexcept { return outgoing_.size() - sent_; }
  bool open() const noexcept { return open_; }
  /// Sends what is queued, for this long at most. For the end of a process.
  void flush(std::chrono::milliseconds limit);
  /// From now on messages stay where they are, or come again: for a receiver that is behind.
  void pause(bool paused);

 private:
  void read();
  void write();
  void end(const std::string& reason);

  EventLoop& loop_;
  UniqueFd in_, out_;
  OnMessage on_message_;
  OnEnd on_end_;
  std::optional<Seal> outgoing_seal_;
  FrameReader incoming_;
  std::vector<std::byte> outgoing_;
  std::size_t sent_ = 0;  ///< of outgoing_
  bool open_ = true;
};

/// The variable by which an agent's descendants know its pipe: "PID:DESCRIPTOR:INODE".
inline constexpr char kAgentVariable[] = "HORARUN_AGENT";
/// What the agent sends to a guard whose rank has not ended in its time: the guard kills it.
inline int kill_rank_signal() {
  return SIGRTMIN;
}

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
