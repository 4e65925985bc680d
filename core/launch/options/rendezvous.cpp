#include "core/launch/options/rendezvous.h"

#include <hora/printable.h>

#include <algorithm>

#include "core/launch/options/hosts.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

constexpr int kEndpointPort = 29400;  // torchrun's --rdzv-endpoint
constexpr std::string_view kUrls = "expected tcp://host:port or file:///folder";

struct Address {
  std::string_view host;
  std::string_view port;
};

/// "host:port", "host", "[::1]:port" or "[::1]".
Address split_address(std::string_view text) {
  const std::size_t bracket = text.starts_with('[') ? text.find(']') : text.npos;
  const std::size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  Address address{text.substr(0, colon), colon == text.npos ? "" : text.substr(colon + 1)};
  if (bracket != text.npos && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  return address;
}

tl::expected<RendezvousPlace, std::string> checked(std::string_view host, std::string_view port,
                                                   int least_port = 1) {
  if (const std::string wrong = wrong_with_host_name(host); !wrong.empty()) {
    return Unexpected("host " + in_quotes(host) + ": " + wrong);
  }
  const auto number = parse_integer(port, least_port, 65535);
  if (!number) return Unexpected("port " + in_quotes(port) + ": " + number.error());
  return RendezvousPlace{
      .host = std::string(host), .port = static_cast<std::uint16_t>(*number), .folder = {}};
}

/// The value of the last entry "name=value", as exec's environment may hold several; or nothing.
std::optional<std::string_view> value_of(std::string_view name,
                                         std::span<const char* const> environment) {
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      const std::string_view value = text.substr(name.size() + 1);
      if (!value.empty()) return value;
    }
  }
  return std::nullopt;
}

}  // namespace

tl::expected<RendezvousPlace, std::string> parse_rendezvous(std::string_view url) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kFile = "file://";
  if (url.starts_with(kFile)) {
    const std::string_view folder = url.substr(kFile.size());
    if (!folder.starts_with('/') || folder.find('\0') != folder.npos) {
      return Unexpected("expected an absolute path after file://, as in file:///shared/job");
    }
    return RendezvousPlace{.host = {}, .port = 0, .folder = std::string(folder)};
  }
  if (!url.starts_with(kTcp)) return Unexpected(std::string(kUrls));
  std::string_view address = url.substr(kTcp.size());
  if (address.ends_with('/')) address.remove_suffix(1);
  const auto [host, port] = split_address(address);
  if (port.empty()) return Unexpected("the port is missing; " + std::string(kUrls));
  return checked(host, port);
}

tl::expected<RendezvousPlace, std::string> parse_endpoint(std::string_view endpoint) {
  if (endpoint.starts_with("tcp://") || endpoint.starts_with("file://")) {
    return parse_rendezvous(endpoint);
  }
  const auto [host, port] = split_address(endpoint);
  return checked(host, port.empty() ? std::to_string(kEndpointPort) : port, 0);
}

bool is_rendezvous_id(std::string_view id) noexcept {
  constexpr std::size_t kLongest = 64;
  const auto is_letter_or_digit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  return !id.empty() && id.size() <= kLongest && is_letter_or_digit(id.front()) &&
         std::ranges::all_of(
             id, [&](char c) { return is_letter_or_digit(c) || c == '.' || c == '_' || c == '-'; });
}

std::string to_url(const RendezvousPlace& rendezvous) {
  if (!rendezvous.folder.empty()) return "file://" + rendezvous.folder;
  const bool is_address = rendezvous.host.find(':') != std::string::npos;
  return "tcp://" + (is_address ? "[" + rendezvous.host + "]" : rendezvous.host) + ":" +
         std::to_string(rendezvous.port);
}

tl::expected<std::optional<RendezvousPlace>, std::string> master_in_environment(
    std::span<const char* const> environment) {
  const auto host = value_of("MASTER_ADDR", environment);
  if (!host) return std::nullopt;
  const auto place =
      checked(*host, value_of("MASTER_PORT", environment).value_or(std::to_string(kMasterPort)));
  if (!place) return Unexpected("MASTER_ADDR, MASTER_PORT: " + place.error());
  return *place;
}

tl::expected<std::optional<NodeInEnvironment>, std::string> rendezvous_from_environment(
    std::span<const char* const> environment) {
  const auto master = master_in_environment(environment);
  if (!master) return Unexpected(master.error());
  const char* count_name = "NNODES";
  const char* rank_name = "NODE_RANK";
  if (!value_of(count_name, environment) || !value_of(rank_name, environment)) {
    count_name = "WORLD_SIZE";
    rank_name = "RANK";
  }
  const auto count = value_of(count_name, environment);
  const auto rank = value_of(rank_name, environment);
  if (!*master || !count || !rank) return std::nullopt;

  const auto nnodes = parse_integer(*count, 1, kMostRanks);
  if (!nnodes)
    return Unexpected(std::string(count_name) + "=" + in_quotes(*count) + ": " + nnodes.error());
  const auto node_rank = parse_integer(*rank, 0, *nnodes - 1);
  if (!node_rank) {
    return Unexpected(std::string(rank_name) + "=" + in_quotes(*rank) + ": " + node_rank.error() +
                      " (one below " + count_name + ")");
  }
  return NodeInEnvironment{**master, *nnodes, *node_rank};
}

}  // namespace hora::launch
