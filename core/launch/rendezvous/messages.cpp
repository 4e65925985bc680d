#include "core/launch/rendezvous/messages.h"

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/launch/rendezvous/rendezvous.h"

namespace hora::launch {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestName = 255, kLongestText = 4096;

std::vector<std::byte> bytes_of(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

Json to_json(const Node& node) {
  return {{"host", node.host}, {"address", node.address}, {"ranks", node.ranks}};
}

/// Takes an object's members, and remembers the first that is not as it has to be.
class Members {
 public:
  explicit Members(const Json& object) : object_(object) {
    if (!object.is_object()) wrong_ = "it is no object";
  }

  const Json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(name);
    return at == object_.end() ? nullptr : &*at;
  }
  std::string text(const char* name, std::size_t longest) {
    const Json* const member = find(name);
    if (member != nullptr && member->is_string()) {
      const auto& value = member->get_ref<const std::string&>();
      if (value.size() <= longest) return printable(value, longest);
    }
    return refuse(name), std::string();
  }
  int number(const char* name, int least, int most) {
    const Json* const member = find(name);
    if (member != nullptr && member->is_number_integer()) {
      // Unsigned numbers beyond 63 bits would turn negative.
      const bool fits = !member->is_number_unsigned() ||
                        member->get<std::uint64_t>() <= static_cast<std::uint64_t>(most);
      const auto value = fits ? member->get<std::int64_t>() : -1;
      if (value >= least && value <= most) return static_cast<int>(value);
    }
    return refuse(name), least;
  }
  void refuse(const std::string& name) {
    if (wrong_.empty()) wrong_ = "its member " + name + " is missing or out of its range";
  }
  const std::string& wrong() const { return wrong_; }

 private:
  const Json& object_;
  std::string wrong_;
};

template <class T>
tl::expected<T, std::string> unless_wrong(const Members& members, T value) {
  if (members.wrong().empty()) return value;
  return tl::unexpected("a message of the rendezvous cannot be read: " + members.wrong());
}

Json parse(std::span<const std::byte> bytes, std::size_t longest) {
  if (bytes.size() > longest) return nullptr;
  const auto* const begin = reinterpret_cast<const char*>(bytes.data());
  return Json::parse(begin, begin + bytes.size(), nullptr, false);
}

std::vector<Node> take_nodes(Members& members) {
  std::vector<Node> nodes;
  const Json* const list = members.find("nodes");
  if (list == nullptr || !list->is_array() || list->empty() ||
      list->size() > static_cast<std::size_t>(kMostNodes)) {
    members.refuse("nodes");
    return nodes;
  }
  for (const Json& entry : *list) {
    Members of_node(entry);
    Node node;
    node.host = of_node.text("host", kLongestName);
    node.address = of_node.text("address", kLongestName);
    node.ranks = of_node.number("ranks", 1, kMostNodes);
    if (!of_node.wrong().empty()) members.refuse("nodes");
    nodes.push_back(std::move(node));
  }
  return nodes;
}

constexpr std::array kKinds{"wait", "go", "end"};

}  // namespace

std::vector<std::byte> encode(const JoinRequest& request) {
  Json json{{"version", request.version},
            {"job", request.job},
            {"host", request.host},
            {"nodes", request.nodes},
            {"ranks", request.ranks}};
  if (request.node_rank) json["node_rank"] = *request.node_rank;
  return bytes_of(json);
}

std::vector<std::byte> encode(const JoinReply& reply) {
  Json json{{"kind", kKinds[static_cast<std::size_t>(reply.kind)]}};
  if (reply.kind != JoinReply::Kind::go) json["text"] = reply.text.substr(0, kLongestText);
  if (reply.kind == JoinReply::Kind::go) json["node_rank"] = reply.node_rank;
  if (reply.kind != JoinReply::Kind::end) {
    for (const Node& node : reply.nodes) json["nodes"].push_back(to_json(node));
  }
  return bytes_of(json);
}

tl::expected<JoinRequest, std::string> decode_request(std::span<const std::byte> bytes) {
  const Json json = parse(bytes, kLongestRequest);
  Members members(json);
  JoinRequest request;
  request.version = members.text("version", kLongestName);
  request.job = members.text("job", kLongestName);
  request.host = members.text("host", kLongestName);
  request.nodes = members.number("nodes", 1, kMostNodes);
  request.ranks = members.number("ranks", 1, kMostNodes);
  if (members.find("node_rank") != nullptr) {
    request.node_rank = members.number("node_rank", 0, kMostNodes);
  }
  return unless_wrong(members, std::move(request));
}

tl::expected<JoinReply, std::string> decode_reply(std::span<const std::byte> bytes) {
  const Json json = parse(bytes, kLongestReply);
  Members members(json);
  JoinReply reply;
  const std::string kind = members.text("kind", kLongestName);
  const auto at = std::ranges::find(kKinds, kind);
  if (at == kKinds.end()) {
    members.refuse("kind");
    return unless_wrong(members, std::move(reply));
  }
  reply.kind = static_cast<JoinReply::Kind>(at - kKinds.begin());
  if (reply.kind != JoinReply::Kind::go) reply.text = members.text("text", kLongestText);
  if (reply.kind != JoinReply::Kind::end) reply.nodes = take_nodes(members);
  if (reply.kind == JoinReply::Kind::go) {
    reply.node_rank = members.number("node_rank", 1, kMostNodes);
    if (static_cast<std::size_t>(reply.node_rank) >= reply.nodes.size()) {
      members.refuse("node_rank");
    }
  }
  return unless_wrong(members, std::move(reply));
}

}  // namespace hora::launch
