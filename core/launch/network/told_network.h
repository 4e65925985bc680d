/// A host's network and the trial of it as messages between launcher and agent.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/messages.h"
#include "core/launch/network/interfaces.h"
#include "core/launch/network/probe.h"

namespace hora::launch {

/// `ports`: where each of candidates_of(network) is asked.
NetworkTold to_message(const HostNetwork& network, const std::vector<ProbeEndpoint>& endpoints);
TryNetwork to_message(const std::vector<ProbePeer>& peers);
NetworkTried to_message(const std::vector<ProbePair>& pairs);

struct ToldNetwork {
  HostNetwork network;
  std::vector<ProbeEndpoint> endpoints;  ///< of candidates_of(network)
};

/// Of messages from another process; an error says what is wrong with them.
tl::expected<ToldNetwork, std::string> from_message(const NetworkTold& told,
                                                    const std::string& host);
tl::expected<std::vector<ProbePeer>, std::string> from_message(const TryNetwork& request);
tl::expected<std::vector<ProbePair>, std::string> from_message(const NetworkTried& tried);
/// 16 bytes.
tl::expected<ProbeNonce, std::string> nonce_of(const TellNetwork& request);

}  // namespace hora::launch
