/// The ways of messages, over descriptors: between the launcher and an agent, and between nodes
/// that meet, in both directions and without blocking (Channel); from guards and other processes
/// below an agent to it, through its pipe, which they open through /proc to write whole messages
/// into it. No socket, no file; the pipe is gone with the agent. Thread rule: one thread; of a
/// channel that of its loop.
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

namespace hora::launch {

/// Two descriptors to another process, and the seals of what goes over them where nodes have met
/// over a network.
struct Connection {
  UniqueFd in, out;
  std::optional<SealPair> seals = {};
};

/// A socket as a connection. Throws std::system_error.
Connection connection_of(UniqueFd socket);

/// Messages in both directions.
class Channel {
 public:
  using OnMessage = std::function<void(Message&&)>;
  /// The other side is gone, or has sent what is no message (`reason` says what). Called once,
  /// after all messages before it; nothing is sent or received after it.
  using OnEnd = std::function<void(const std::string& reason)>;

  /// The loop outlives the channel, which may be ended within neither callback.
  Channel(EventLoop& loop, Connection connection, OnMessage on_message, OnEnd on_end);
  /// With a side that is not known yet: both prove by a first Heartbeat that they have the token,
  /// which outlives the channel, before anything else is read. `connects`: whether this side has
  /// connected to the other. `longest`: of its messages, in bytes.
  Channel(EventLoop& loop, Connection connection, const SecretKey& token, bool connects,
          std::size_t longest, OnMessage on_message, OnEnd on_end);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Queued where the other side is slow. Not before a side that is not known yet has greeted.
  void send(const Message& message);
  /// Bytes that are queued: the sender stops reading its own sources above a limit.
  std::size_t queued() const noexcept { return outgoing_.size() - sent_; }
  bool open() const noexcept { return open_; }
  /// Whether the other side has proved that it has the token, where it has to.
  bool authenticated() const noexcept { return !handshake_; }
  /// Whether it has ended because of what the other side has sent.
  bool refused() const noexcept { return refused_; }
  /// Sends what is queued, for this long at most: false where more is left. For the end of a
  /// process, or of this channel.
  bool flush(std::chrono::milliseconds limit);
  /// Ends the channel, whose connection goes on in another.
  Connection release();

 private:
  struct Handshake {
    const SecretKey* token;
    bool connects;
    Greeting own = fresh_greeting();
  };

  void read();
  void take(std::span<const std::byte> payload);
  void greet(std::span<const std::byte> greeting);
  void write();
  void refuse(const std::string& reason);
  void end(const std::string& reason);

  EventLoop& loop_;
  Connection connection_;
  std::optional<Handshake> handshake_;  ///< not authenticated yet
  OnMessage on_message_;
  OnEnd on_end_;
  FrameReader incoming_;
  Bytes outgoing_;
  std::size_t sent_ = 0;  ///< of outgoing_
  bool open_ = true;
  bool refused_ = false;
};

/// The variable by which an agent's descendants know its pipe: "PID:DESCRIPTOR:INODE", the last to
/// tell another process of that number apart.
inline constexpr char kAgentVariable[] = "HORARUN_AGENT";
/// Sent by the agent to a guard whose rank has not ended in its time: the guard kills it.
inline int kill_rank_signal() {
  return SIGRTMIN;
}

/// The variable's value, for the writing end of a pipe of this process.
std::string address_of(const UniqueFd& write_end);

struct ReportPipe {
  UniqueFd pipe;    ///< to write into
  pid_t agent = 0;  ///< whose it is
};
/// Opens the pipe that the variable names. An error says why the agent cannot be reached.
tl::expected<ReportPipe, std::string> open_report_pipe();

/// Waits while the pipe is full; false where the agent is gone. The message is at most PIPE_BUF
/// with its frame (throws std::length_error), so that those of several processes do not mix.
bool send_report(const UniqueFd& pipe, const Message& message);

}  // namespace hora::launch
