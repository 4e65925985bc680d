/// What horarun, its agents and its guards tell each other (control.fbs says what each is), and how
/// it stands in a stream of bytes: as frames (seal.h). Thread rule: one thread for a FrameReader,
/// the rest is pure.
#pragma once

#include <control_generated.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

#include "core/launch/control/seal.h"

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
using ProcessStopped = wire::ProcessStoppedT;
using RankStarted = wire::RankStartedT;
using RankOutput = wire::RankOutputT;
using RankStopped = wire::RankStoppedT;
using RankSignalled = wire::RankSignalledT;
using RankWaits = wire::RankWaitsT;
using RankOverdue = wire::RankOverdueT;
using RankEnded = wire::RankEndedT;
using RankSeen = wire::RankSeenT;
using ArrivalsSeen = wire::ArrivalsSeenT;
using TellNetwork = wire::TellNetworkT;
using TryNetwork = wire::TryNetworkT;
using NetworkTold = wire::NetworkToldT;
using NetworkTried = wire::NetworkTriedT;

using Message =
    std::variant<Prepare, Start, SignalRanks, EndAll, Heartbeat, Hello, Prepared, ProcessEnded,
                 ProcessOutput, StartRemote, ProcessStopped, RankStarted, RankOutput, RankStopped,
                 RankSignalled, RankEnded, TellNetwork, TryNetwork, NetworkTold, NetworkTried,
                 RankWaits, RankSeen, ArrivalsSeen, RankOverdue>;

/// Longest message, in bytes. Those from guards are at most PIPE_BUF with their frame, so that the
/// kernel writes each as one (pipe(7)).
inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;
/// Most bytes of output or of a text in a message from a guard.
inline constexpr std::size_t kMostOutputBytes = 3000;

std::vector<std::byte> encode(const Message& message);

/// Of bytes from another process, aligned as memory of operator new is; an error says what is wrong
/// with them.
tl::expected<Message, std::string> decode(std::span<const std::byte> bytes);

/// One message as a frame.
std::vector<std::byte> frame(const Message& message, Seal* seal = nullptr);

/// Takes bytes as they come, and gives whole messages.
class FrameReader {
 public:
  /// With a seal every message has to be sealed.
  explicit FrameReader(std::optional<Seal> seal = std::nullopt) : seal_(std::move(seal)) {}

  void append(std::span<const std::byte> bytes);
  /// The next message; none where it is not complete. After an error nothing more can be read.
  tl::expected<std::optional<Message>, std::string> next();

 private:
  std::optional<Seal> seal_;
  FrameParser parser_{kMostMessageBytes};
  std::vector<std::byte> buffer_;
  std::size_t position_ = 0;  ///< read before it
};

}  // namespace hora::launch
