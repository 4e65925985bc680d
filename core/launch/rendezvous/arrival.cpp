#include "core/launch/rendezvous/arrival.h"

#include <hora/error.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/launch/rendezvous/admission.h"
#include "core/launch/rendezvous/gathering.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kConnectLimit = 3000ms, kBetweenTrials = 250ms;

}  // namespace

/// With what may be node 0.
struct Arrival::Conversation {
  Conversation(UniqueFd with, const Endpoint& at, const SecretKey& token, JoinRequest request)
      : connection(std::move(with)), to(at), joining(token, std::move(request)) {}

  UniqueFd connection;
  Endpoint to;
  Joining joining;
  ExactReader reader;
  std::string node0 = "node 0 at " + to_string(to);
  bool joined = false;  ///< node 0 has answered the request
};

Arrival::Arrival(const RendezvousOptions& options, Find find, Token token, bool may_change)
    : options_(options),
      find_(std::move(find)),
      token_(std::move(token)),
      may_change_(may_change),
      next_report_(started_ + options.report_every) {}

NodesMet Arrival::run() {
  for (;;) {
    if (auto met = try_once()) return std::move(*met);
    if (wait_readable(-1, std::min(Clock::now() + kBetweenTrials, end_of_all())) ==
        Waited::stopped) {
      stopped();
    }
    if (Clock::now() >= end_of_all()) {
      throw Error(ErrorCode::timeout,
                  "the rendezvous ended after " + elapsed_text(started_, options_.timeout) + ": " +
                      self() + " still waits for " + waits_for_ +
                      "; is horarun started on node 0, and is its address reachable from here?");
    }
  }
}

std::optional<NodesMet> Arrival::try_once() {
  const auto point = find_();
  if (!point) {
    waits_for_ = "node 0: " + point.error();
    return {};
  }
  const auto token = token_();
  if (!token) {
    if (!may_change_) throw Error(ErrorCode::invalid_argument, token.error());
    waits_for_ = "node 0: " + token.error();
    return {};
  }
  for (const Endpoint& endpoint : point->endpoints) {
    const auto until = std::min(Clock::now() + kConnectLimit, end_of_all());
    auto connection = connect_to(endpoint, options_.stop_descriptor, until);
    if (connection) {
      Conversation conversation(std::move(*connection), endpoint, **token, request_of(options_));
      if (auto met = talk(conversation)) return met;
      continue;
    }
    waits_for_ = "node 0 at " + point->name +
                 (point->name.find(to_string(endpoint)) == std::string::npos
                      ? " (" + to_string(endpoint) + ")"
                      : "") +
                 ": " + std::generic_category().message(connection.error());
    report_if_due();
  }
  return {};
}

std::optional<NodesMet> Arrival::talk(Conversation& conversation) {
  Joining& joining = conversation.joining;
  if (!send(conversation, joining.hello())) return {};
  while (await(conversation)) {
    const auto answer = joining.take(conversation.reader.bytes());
    if (!answer) {
      // No proof: upon it node 0 says, too, that the tokens differ.
      if (!joining.authenticated()) send(conversation, ClientProof{});
      waits_for_ = conversation.node0 + ": " + answer.error();
      if (may_change_ && !joining.authenticated()) return {};
      throw Error(ErrorCode::invalid_argument, self() + " cannot join " + waits_for_);
    }
    if (!send(conversation, *answer)) return {};
    if (!joining.reply()) continue;
    if (auto met = follow(conversation)) return met;
  }
  return {};
}

bool Arrival::await(Conversation& conversation) {
  const Joining& joining = conversation.joining;
  const auto since = Clock::now();
  for (;;) {
    const auto limit = joining.authenticated() ? options_.silence_limit : options_.handshake_limit;
    const auto until = std::min(since + limit, end_of_all());
    const Waited waited = wait_readable(conversation.connection.get(), until);
    if (waited == Waited::stopped) stopped();
    if (waited == Waited::timeout) {
      if (until == end_of_all()) return false;
      if (joining.authenticated()) {
        throw Error(ErrorCode::transport, self() + " has heard nothing from " + conversation.node0 +
                                              " for " + elapsed_text(since, limit) +
                                              "; it hangs, or the network between them is cut");
      }
      waits_for_ = conversation.node0 + ": it does not answer as a horarun does";
      return false;
    }
    const auto state = conversation.reader.read(conversation.connection.get(), joining.wants());
    if (state == ExactReader::State::complete) return true;
    if (state == ExactReader::State::pending) continue;
    if (conversation.joined) {
      throw Error(ErrorCode::transport,
                  conversation.node0 + " has gone while " + self() + " waited for " + waits_for_);
    }
    waits_for_ = conversation.node0 +
                 ": it closed the connection (has it another token, or another version of hora?)";
    return false;
  }
}

std::optional<NodesMet> Arrival::follow(Conversation& conversation) {
  const JoinReply& reply = *conversation.joining.reply();
  if (reply.kind == JoinReply::Kind::end) throw Error(ErrorCode::invalid_argument, reply.text);
  const Node& first = reply.nodes.front();
  conversation.joined = true;
  conversation.node0 = "node 0 (host " + first.host + ", " + to_string(conversation.to) + ")";
  if (reply.kind == JoinReply::Kind::wait) {
    waits_for_ = reply.text + ", with " + conversation.node0;
    return {};
  }
  SealPair seals = conversation.joining.take_seals();
  NodesMet result{reply.node_rank, reply.nodes, {}};
  result.joined.push_back({0, first.host, to_string(conversation.to.address), first.ranks,
                           std::move(conversation.connection), std::move(seals.send),
                           std::move(seals.receive)});
  return result;
}

bool Arrival::send(const Conversation& conversation, std::span<const std::byte> bytes) {
  const auto until = Clock::now() + options_.handshake_limit;
  if (send_all(conversation.connection.get(), bytes, until)) return true;
  waits_for_ = conversation.node0 + ": it closed the connection";
  return false;
}

Waited Arrival::wait_readable(int descriptor, Clock::time_point until) {
  for (;;) {
    report_if_due();
    const auto pause = std::min(until, next_report_);
    const Waited waited = wait_for(descriptor, POLLIN, options_.stop_descriptor, pause);
    if (waited != Waited::timeout || pause == until) return waited;
  }
}

void Arrival::report_if_due() {
  const auto now = Clock::now();
  if (now < next_report_) return;
  next_report_ = now + options_.report_every;
  if (options_.say) {
    options_.say(self() + " waits for " + waits_for_ + ", " +
                 elapsed_text(started_, options_.timeout));
  }
}

void Arrival::stopped() const {
  throw Error(ErrorCode::shut_down, self() + " was stopped while it waited for " + waits_for_);
}

std::string Arrival::self() const {
  return (options_.node_rank ? "node " + std::to_string(*options_.node_rank) : "this node") +
         " (host " + options_.host + ")";
}

}  // namespace hora::launch
