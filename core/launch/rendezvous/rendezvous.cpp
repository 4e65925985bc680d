#include "core/launch/rendezvous/rendezvous.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <optional>
#include <utility>

#include "core/launch/control/token.h"
#include "core/launch/rendezvous/arrival.h"
#include "core/launch/rendezvous/gathering.h"
#include "core/launch/rendezvous/listening.h"
#include "core/launch/rendezvous/meeting_folder.h"

namespace hora::launch {
namespace {

tl::unexpected<std::string> refused_options(std::string why) {
  return tl::unexpected(std::move(why));
}

}  // namespace

tl::expected<void, std::string> check(const RendezvousOptions& options) {
  if (options.nodes < 1 || options.nodes > kMostNodes) {
    return refused_options("--nnodes " + std::to_string(options.nodes) + ": allowed: 1 to " +
                           std::to_string(kMostNodes));
  }
  if (options.node_rank && (*options.node_rank < 0 || *options.node_rank >= options.nodes)) {
    return refused_options("--node-rank " + std::to_string(*options.node_rank) +
                           ": with --nnodes " + std::to_string(options.nodes) +
                           " node ranks are 0 to " + std::to_string(options.nodes - 1));
  }
  if (options.ranks < 1 || options.ranks > kMostNodes) {
    return refused_options("--nproc-per-node " + std::to_string(options.ranks) +
                           ": allowed: 1 to " + std::to_string(kMostNodes));
  }
  if (!is_rendezvous_id(options.job)) {
    return refused_options(
        "--rendezvous-id " + in_quotes(options.job) +
        ": allowed: up to 64 letters, digits and ._- , the first a letter or digit");
  }
  return {};
}

namespace {

template <class T>
T or_throw(tl::expected<T, std::string> value) {
  if (!value) throw Error(ErrorCode::invalid_argument, value.error());
  if constexpr (!std::is_void_v<T>) return std::move(*value);
}

template <class T>
T listening_or_throw(tl::expected<T, NotListening> value) {
  if (!value) throw Error(ErrorCode::invalid_argument, value.error().text);
  return std::move(*value);
}

bool may_be_node0(const RendezvousOptions& options) {
  return options.node_rank.value_or(0) == 0;
}

NodesMet meet_at_address(const RendezvousOptions& options, const SecretKey& token) {
  if (may_be_node0(options)) {
    const bool is_node0 = options.node_rank.has_value();
    auto listening = listen_for(options, !is_node0);
    if (listening) {
      if (!listening->note.empty() && options.say) options.say(listening->note);
      return Gathering(options, token, listening->listener).run();
    }
    if (is_node0 || listening.error().why == NotListening::Why::other) {
      listening_or_throw(std::move(listening));
    }
  }
  const auto find = [&]() -> tl::expected<MeetingPoint, std::string> {
    auto endpoints = endpoints_of(options);
    if (!endpoints) return tl::unexpected(endpoints.error());
    return MeetingPoint{std::move(*endpoints), to_url(options.place)};
  };
  return Arrival(
             options, find, [&] { return &token; }, false)
      .run();
}

/// Without a token, node 0 makes one.
NodesMet meet_in_folder(const RendezvousOptions& options, std::optional<SecretKey> token) {
  const MeetingFolder folder(options.place.folder, options.job);
  const bool token_is_made = !token;
  if (may_be_node0(options)) {
    if (token_is_made) or_throw(folder.check_private());
    if (const auto host = MeetingHost::claim(folder)) {
      if (token_is_made) token = host->make_token();
      const Listening listening = listening_or_throw(listen_anywhere(options));
      host->publish({listening.listener.at, options.host});
      return Gathering(options, *token, listening.listener).run();
    }
    if (options.node_rank) {
      const auto other = folder.read();
      throw Error(ErrorCode::invalid_argument,
                  "two nodes have the same rank: host " + (other ? other->host : "(unknown)") +
                      " and host " + options.host + " both meet as node 0 of the job " +
                      options.job + " in " + folder.path() +
                      "; give each node its own --node-rank");
    }
  }
  const auto find = [&]() -> tl::expected<MeetingPoint, std::string> {
    const auto meeting = folder.read();
    if (!meeting) return tl::unexpected(meeting.error());
    return MeetingPoint{{meeting->at}, to_url(options.place)};
  };
  const auto current_token = [&]() -> tl::expected<const SecretKey*, std::string> {
    if (token_is_made) {
      auto read = folder.read_token();
      if (!read) return tl::unexpected(read.error());
      token = std::move(*read);
    }
    return &*token;
  };
  return Arrival(options, find, current_token, token_is_made).run();
}

}  // namespace

NodesMet meet(const RendezvousOptions& options, const char* token_variable) {
  or_throw(check(options));
  const bool has_token = options.token_file || token_variable != nullptr;
  if (!options.place.folder.empty() && !has_token) return meet_in_folder(options, std::nullopt);
  SecretKey token = or_throw(load_token(options.token_file, token_variable));
  if (!options.place.folder.empty()) return meet_in_folder(options, std::move(token));
  return meet_at_address(options, token);
}

}  // namespace hora::launch
