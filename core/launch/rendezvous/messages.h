/// Messages of the nodes' horaruns at a rendezvous: JSON within sealed frames (seal.h).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

/// One node of the job, as all learn it.
struct Node {
  std::string host;
  std::string address;  ///< as node 0 sees it
  int ranks = 1;

  bool operator==(const Node&) const = default;
};

/// What a node tells node 0 of itself.
struct JoinRequest {
  std::string version;  ///< hora's
  std::string job;
  std::string host;
  int nodes = 1;
  std::optional<int> node_rank;
  int ranks = 1;

  bool operator==(const JoinRequest&) const = default;
};

/// What node 0 answers: either who is still missing, from time to time; or that all are there; or
/// that the job cannot start.
struct JoinReply {
  enum class Kind { wait, go, end };
  Kind kind = Kind::wait;
  std::string text;         ///< of wait: "nodes 2, 3 of 4"; of end: why
  int node_rank = 0;        ///< of go: the receiver's
  std::vector<Node> nodes;  ///< of go: by node rank; of wait: node 0 alone

  bool operator==(const JoinReply&) const = default;
};

/// The longest messages, in bytes: what a node that has the token may make the other allocate.
inline constexpr std::size_t kLongestRequest = 4096;
inline constexpr std::size_t kLongestReply = std::size_t{16} << 20;

std::vector<std::byte> encode(const JoinRequest& request);
std::vector<std::byte> encode(const JoinReply& reply);

/// Errors say what is wrong with the bytes. Numbers are in their ranges, texts short and printable.
tl::expected<JoinRequest, std::string> decode_request(std::span<const std::byte> bytes);
tl::expected<JoinReply, std::string> decode_reply(std::span<const std::byte> bytes);

}  // namespace hora::launch
