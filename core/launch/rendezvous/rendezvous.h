/// A job without ssh: a horarun is started on each node, they meet, and from then on each of the
/// others has one connection to node 0's.
///
/// Node 0 has the only listening socket, at one address, until all have come. Both ends of a
/// connection prove that they have the same token before anything else is read (admission.h); all
/// later messages are encrypted (seal.h). A process that waits logs every 5 s for which hosts.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/control/seal.h"
#include "core/launch/control/unique_fd.h"
#include "core/launch/options/hosts.h"
#include "core/launch/rendezvous/messages.h"

namespace hora::launch {

inline constexpr int kMostNodes = 65536;

/// What the horarun of one node was told about the rendezvous and the job.
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

/// A node at the other end of a connection, which is non-blocking; its end (EOF, or an error) is
/// that of the node. The seals go on where the rendezvous has left them.
struct JoinedNode {
  int node_rank = 0;
  std::string host;
  std::string address;  ///< an IP address, without port
  int ranks = 1;
  UniqueFd connection;
  Seal send;
  Seal receive;
};

struct NodesMet {
  int node_rank = 0;               ///< this node's
  std::vector<Node> nodes;         ///< all, by node rank
  std::vector<JoinedNode> joined;  ///< on node 0 all others, by node rank; on these node 0 alone
};

/// Returns when all nodes have met. Throws Error: invalid_argument where the nodes contradict each
/// other (every node then gets the same text), the place or the token cannot be used, or the port
/// is in use; timeout where a node has not come; transport where node 0 has gone; shut_down where
/// options.stop_descriptor became readable. Nothing is left behind then. `token_variable`: the
/// value of HORARUN_TOKEN, null where it is not set; the caller takes it out of its ranks'
/// environment. Thread rule: one thread; blocks.
NodesMet meet(const RendezvousOptions& options, const char* token_variable);

}  // namespace hora::launch
