/// The launcher's part in the choice of interfaces: asks all agents for theirs, has them tried
/// where that is needed, and chooses. Values in, values out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "core/launch/control/messages.h"
#include "core/launch/network/choice.h"
#include "core/launch/network/told_network.h"

namespace hora::launch {

/// Thread rule: one thread.
class NetworkTrial {
 public:
  /// Messages, each with the host to which it goes.
  using Messages = std::vector<std::pair<std::size_t, Message>>;

  /// `named`: the user's --network-interfaces; empty: found by trying. `nonce` is random.
  NetworkTrial(std::vector<std::string> hosts, std::vector<std::string> named,
               const ProbeNonce& nonce);

  /// To be sent first.
  Messages start() const;
  /// An agent's answer, and what to send upon it.
  Messages on(std::size_t host, const NetworkTold& told);
  Messages on(std::size_t host, const NetworkTried& tried);
  /// What is missing will not come, some 2 s after start(): the choice is made from what there is.
  Messages give_up();

  /// The choice, or what is wrong: with the user's names, or that a host has not told its
  /// interfaces. Nothing before it is known.
  const std::optional<tl::expected<NetworkChoice, std::string>>& result() const { return result_; }

 private:
  Messages compare();
  Messages conclude(tl::expected<NetworkChoice, std::string> result);

  std::vector<std::string> names_, named_;
  ProbeNonce nonce_;
  std::vector<std::optional<ToldNetwork>> told_;
  std::vector<std::optional<std::vector<ProbePair>>> tried_;
  std::vector<HostNetwork> hosts_;  ///< when all have told theirs
  std::optional<tl::expected<NetworkChoice, std::string>> result_;
};

}  // namespace hora::launch
