/// What the horarun of one node was told about the rendezvous and the job.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/options/rendezvous.h"

namespace hora::launch {

inline constexpr int kMostNodes = 65536;

struct RendezvousOptions {
  RendezvousPlace place;
  int nodes = 1;                 ///< --nnodes
  std::optional<int> node_rank;  ///< --node-rank; absent on all nodes: in order of arrival
  int ranks = 1;                 ///< --nproc-per-node, of this node
  /// --rendezvous-id: tells jobs in one folder apart, and is compared.
  std::string job = "job";
  std::string host;                       ///< this host's name, for messages: it need not resolve
  std::string version;                    ///< hora's
  std::optional<std::string> token_file;  ///< else HORARUN_TOKEN
  std::vector<std::string> network_interfaces;   ///< --network-interfaces, for node 0; empty: none
  std::chrono::milliseconds timeout{600'000};    ///< --start-timeout
  std::chrono::milliseconds report_every{5000};  ///< who waits says for whom
  std::chrono::milliseconds handshake_limit{5000};  ///< how long a stranger may keep a connection
  std::chrono::milliseconds silence_limit{30'000};  ///< without a report, node 0 counts as hung
  /// Readable when the user wants to stop (a signalfd, a pipe); -1: none.
  int stop_descriptor = -1;
  /// Takes one line, without its end: who waits for whom, who was refused.
  std::function<void(const std::string&)> say;
};

/// What is wrong with these options alone, if anything is.
tl::expected<void, std::string> check(const RendezvousOptions& options);

}  // namespace hora::launch
