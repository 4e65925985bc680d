/// Messages of horarun, its agents and its guards (control.fbs), in frames, each the length of what
/// follows (u32) and the message, sealed or as it is: by channels between launcher, agents and
/// nodes that meet, and from guards through their agent's pipe, which they open through /proc.
/// Nodes that meet share a token, which is never sent, printed or on a command line. Thread rule:
/// one thread; of a channel that of its loop.
#pragma once

#include <control_generated.h>
#include <sodium.h>
#include <sys/types.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "core/launch/control/system.h"

namespace hora::launch {

// Aggregates with an empty base: RankStopped{{}, rank, stopped}.
using Prepare = wire::PrepareT;
using Start = wire::StartT;
using SignalRanks = wire::SignalRanksT;
using EndAll = wire::EndAllT;
using Heartbeat = wire::HeartbeatT;
using Hello = wire::HelloT;
using Prepared = wire::PreparedT;
using ProcessEnded = wire::ProcessEndedT;
using ProcessOutput = wire::ProcessOutputT;
using StartRemote = wire::StartRemoteT;
using RankStarted = wire::RankStartedT;
using RankOutput = wire::RankOutputT;
using RankStopped = wire::RankStoppedT;
using RankSignalled = wire::RankSignalledT;
using RankEnded = wire::RankEndedT;
using RankSeen = wire::RankSeenT;
using ArrivalsSeen = wire::ArrivalsSeenT;
using TellNetwork = wire::TellNetworkT;
using TryNetwork = wire::TryNetworkT;
using NetworkTold = wire::NetworkToldT;
using NetworkTried = wire::NetworkTriedT;
using GenerationEnded = wire::GenerationEndedT;
using GiveWay = wire::GiveWayT;
using HostDrained = wire::HostDrainedT;
using Join = wire::JoinT;
using JoinWait = wire::JoinWaitT;
using JoinGo = wire::JoinGoT;
using JoinEnd = wire::JoinEndT;

using Message = std::variant<Prepare, Start, SignalRanks, EndAll, Heartbeat, Hello, Prepared,
                             ProcessEnded, ProcessOutput, StartRemote, RankStarted, RankOutput,
                             RankStopped, RankSignalled, RankSeen, RankEnded, TellNetwork,
                             TryNetwork, NetworkTold, NetworkTried, ArrivalsSeen, GenerationEnded,
                             Join, JoinWait, JoinGo, JoinEnd, GiveWay, HostDrained>;

/// Heartbeats within the time after which a silent side is taken for lost.
inline constexpr int kBeatsOfSilence = 6;

/// Longest message, in bytes. Those from guards are at most PIPE_BUF with their frame, so that the
/// kernel writes each as one (pipe(7)).
inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;
/// Most bytes of output or of a text in a message from a guard.
inline constexpr std::size_t kMostOutputBytes = 3000;

inline constexpr const char* kTokenVariable = "HORARUN_TOKEN";
inline constexpr std::size_t kShortestToken = 16;
inline constexpr std::size_t kLongestToken = 4096;

using Bytes = std::vector<std::byte>;

/// Zeroes memory at its end.
struct Erase {
  template <class T>
  void operator()(T* secret) const {
    ::sodium_memzero(secret, sizeof *secret);
    delete secret;
  }
};
template <class T>
using Secret = std::unique_ptr<T, Erase>;

using KeyBytes = std::array<unsigned char, crypto_secretstream_xchacha20poly1305_KEYBYTES>;
using SecretKey = Secret<KeyBytes>;

/// The key made from a token's text, without white space at its ends: at least kShortestToken
/// bytes. The error does not contain the text.
tl::expected<SecretKey, std::string> token_from_text(std::string_view text);

/// The key made from a file's content. The file must be a regular one of this user, unreadable for
/// others; a link is followed to such a file, as secrets are mounted into containers.
tl::expected<SecretKey, std::string> token_from_file(const std::string& path);

/// From the file, where one is named (else empty), else from the value of HORARUN_TOKEN (null: not
/// set). With neither, the error says how to make a token.
tl::expected<SecretKey, std::string> load_token(const std::string& file, const char* variable);

/// One end of a direction of a connection, which either seals or opens: libsodium's secretstream,
/// which notices all changes but missing last messages. Move-only. Thread rule: one at a time.
class Seal {
 public:
  /// By which a sealed payload is longer.
  static constexpr std::size_t kMoreBytes = crypto_secretstream_xchacha20poly1305_ABYTES;

  /// The key is of this direction of this connection alone.
  explicit Seal(const KeyBytes& key);

  /// The payload to send next, encrypted.
  Bytes seal(std::span<const std::byte> payload);
  /// The next payload; nothing where it was changed, or sealed by another key.
  std::optional<Bytes> open(std::span<const std::byte> sealed);

 private:
  Secret<crypto_secretstream_xchacha20poly1305_state> state_;
};

/// One side's part of one connection.
struct SealPair {
  Seal send;
  Seal receive;
};

/// The first bytes of each side of a connection: a name and version of this protocol, and 32
/// random bytes.
using Greeting = std::array<std::byte, 40>;
Greeting fresh_greeting();
/// Whether it is a greeting of this version.
bool is_greeting(std::span<const std::byte> bytes);

/// The seals of the side of a connection that has made it (`connects`) or of the other. Their keys
/// depend on token, direction and both greetings: nothing recorded can be repeated or sent back.
SealPair seals_of(const SecretKey& token, bool connects, const Greeting& own,
                  const Greeting& other);

Bytes encode(const Message& message);

/// Reads bytes from another process, aligned as memory of operator new is; an error says what is
/// wrong with them.
tl::expected<Message, std::string> decode(std::span<const std::byte> bytes);

/// The bytes to send for this payload; without a seal as it is.
Bytes frame_of(std::span<const std::byte> payload, Seal* seal = nullptr);

/// Reads frames from a descriptor, each exactly to its end: what follows stays there for the next
/// reader.
class FrameReader {
 public:
  /// The next payload; none where it has not come whole, and the descriptor does not wait. An error
  /// says why none can follow: the other side has closed the connection, or sent no frame.
  tl::expected<std::optional<Bytes>, std::string> read(int descriptor);

 private:
  Bytes bytes_;  ///< of the frame, and room for more of it
  std::size_t filled_ = 0;
};

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
  /// connected to the other.
  Channel(EventLoop& loop, Connection connection, const SecretKey& token, bool connects,
          OnMessage on_message, OnEnd on_end);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Queued where the other side is slow. Not before a side that is not known yet has greeted.
  void send(const Message& message);
  /// Bytes that are queued: the sender stops reading its own sources above a limit.
  std::size_t queued() const noexcept { return outgoing_.size() - sent_; }
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

/// The variable by which an agent's descendants know its pipe: "PID:DESCRIPTOR".
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

/// Waits while the pipe is full; false where the agent is gone. Throws std::length_error where a
/// frame is longer than PIPE_BUF, up to which those of several processes do not mix.
bool send_report(const UniqueFd& pipe, const Message& message);

}  // namespace hora::launch
