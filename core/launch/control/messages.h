/// Messages of horarun, its agents and its guards (control.fbs says what each is), and how they
/// stand in a stream of bytes: as frames, each the length of what follows (u32)
/// and the message, sealed or as it is. Thread rule: one thread for a FrameReader, the rest is
/// pure.
#pragma once

#include <control_generated.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "core/launch/control/secret.h"

namespace hora::launch {

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
using Join = wire::JoinT;
using JoinWait = wire::JoinWaitT;
using JoinGo = wire::JoinGoT;
using JoinEnd = wire::JoinEndT;

using Message =
    std::variant<Prepare, Start, SignalRanks, EndAll, Heartbeat, Hello, Prepared, ProcessEnded,
                 ProcessOutput, StartRemote, RankStarted, RankOutput, RankStopped, RankSignalled,
                 RankSeen, RankEnded, TellNetwork, TryNetwork, NetworkTold, NetworkTried,
                 ArrivalsSeen, Join, JoinWait, JoinGo, JoinEnd>;

/// Longest message, in bytes. Those from guards are at most PIPE_BUF with their frame, so that the
/// kernel writes each as one (pipe(7)).
inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;
/// Most bytes of output or of a text in a message from a guard.
inline constexpr std::size_t kMostOutputBytes = 3000;

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
  /// Longer payloads are refused before memory is taken for them.
  explicit FrameReader(std::size_t longest = kMostMessageBytes)
      : longest_(longest + Seal::kMoreBytes) {}

  /// The next payload; none where it has not come whole, and the descriptor does not wait. An error
  /// says why none can follow: the other side has closed the connection, or sent no frame.
  tl::expected<std::optional<Bytes>, std::string> read(int descriptor);

 private:
  std::size_t longest_;  ///< with its seal
  Bytes bytes_;          ///< of the frame, and room for more of it
  std::size_t filled_ = 0;
};

}  // namespace hora::launch
