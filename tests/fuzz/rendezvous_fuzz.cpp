// What a horarun may get from the network at a rendezvous: bytes of strangers, messages of nodes
// that have the token, and the texts that name the place. The first byte chooses which.
#include <vector>

#include "core/launch/network/address.h"
#include "core/launch/options/hosts.h"
#include "core/launch/rendezvous/admission.h"
#include "core/launch/rendezvous/roster.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora::launch;
using Bytes = std::vector<std::byte>;

const SecretKey& token() {
  static const SecretKey key(SecretKey::Bytes{std::byte{1}});
  return key;
}

/// To one end of a connection, in the pieces that it wants.
template <class End>
void give(End& end, std::span<const std::byte> bytes) {
  while (end.wants() > 0 && bytes.size() >= end.wants()) {
    const std::size_t wants = end.wants();
    HORA_REQUIRE(wants <= kLongestReply + 64);
    if (!end.take(bytes.first(wants))) return;
    bytes = bytes.subspan(wants);
  }
}

void as_strangers(std::span<const std::byte> bytes) {
  Admission node0(token());
  give(node0, bytes);
  HORA_REQUIRE(!node0.authenticated() && !node0.request());
  Joining node(token(), {"1", "job", "b", 2, 1, 1});
  give(node, bytes);
  HORA_REQUIRE(!node.authenticated());
}

/// After a handshake, as the payload of a sealed frame.
void as_nodes(std::span<const std::byte> bytes) {
  Admission node0(token());
  ClientHandshake client(token());
  const auto hello = node0.take(client.hello());
  HORA_REQUIRE(hello.has_value());
  const auto proof = client.answer(*hello);
  HORA_REQUIRE(proof.has_value());
  give(node0, *proof);
  HORA_REQUIRE(node0.authenticated());
  SealPair seals = client.seals();
  give(node0, frame_of(bytes, &seals.send));
  if (!node0.request()) return;
  const JoinRequest request = *node0.request();
  HORA_REQUIRE(decode_request(encode(request)) == request);
  Roster roster({"1", "job", "a", 3, 0, 1}, "10.0.0.1");
  if (roster.add(request, "10.0.0.2")) HORA_REQUIRE(!roster.missing().empty());
}

void as_replies(std::span<const std::byte> bytes) {
  const auto reply = decode_reply(bytes);
  if (!reply) return;
  HORA_REQUIRE(decode_reply(encode(*reply)) == reply);
  if (reply->kind == JoinReply::Kind::go) {
    HORA_REQUIRE(static_cast<std::size_t>(reply->node_rank) < reply->nodes.size());
  }
}

void as_text(const std::string& text) {
  if (const auto place = parse_rendezvous(text)) {
    HORA_REQUIRE(parse_rendezvous(to_url(*place)) == place);
  }
  static_cast<void>(token_from_text(text));
  static_cast<void>(parse_subnet(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0:
      as_strangers(bytes);
      break;
    case 1:
      as_nodes(bytes);
      break;
    case 2:
      as_replies(bytes);
      break;
    default:
      as_text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return 0;
}
