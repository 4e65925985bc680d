#include "core/launch/rendezvous/gathering.h"

#include <hora/error.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMostStrangers = 16;
/// With more from one address the oldest of them goes at once: it is idle, or an attack.
constexpr std::ptrdiff_t kMostFromOneAddress = 4;
/// Strangers this old make room for new ones where there are too many.
constexpr auto kOldStranger = 1000ms;
/// Of a message to a node, which reads nothing else meanwhile.
constexpr auto kSendLimit = 5000ms;
/// Later refusals are not printed: any process that can connect could fill a disk.
constexpr int kMostRefusalsShown = 20;

/// Of a connection on which nothing may come: whether it has ended, or brought something.
bool is_disturbed(int descriptor) {
  std::byte byte{};
  const ssize_t count = ::recv(descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count >= 0 || (errno != EAGAIN && errno != EINTR);
}

}  // namespace

std::string elapsed_text(Clock::time_point since, std::chrono::milliseconds limit) {
  const auto whole_seconds = [](auto duration) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count());
  };
  return whole_seconds(Clock::now() - since) + " s of " + whole_seconds(limit) + " s";
}

JoinRequest request_of(const RendezvousOptions& options) {
  return {options.version, options.job,       options.host,
          options.nodes,   options.node_rank, options.ranks};
}

Gathering::Gathering(const RendezvousOptions& options, const SecretKey& token,
                     const Listener& listener)
    : options_(options),
      token_(token),
      listener_(listener),
      roster_(request_of(options), to_string(listener.at.address)),
      next_report_(started_ + options.report_every) {}

NodesMet Gathering::run() {
  while (!roster_.complete()) turn();
  return go();
}

void Gathering::turn() {
  std::vector<pollfd> polled{{options_.stop_descriptor, POLLIN, 0}};
  // Who connects waits in the listening socket's queue while there are too many.
  const bool has_room = strangers_.size() < kMostStrangers;
  polled.push_back({has_room ? listener_.descriptor.get() : -1, POLLIN, 0});
  for (const Stranger& stranger : strangers_) {
    polled.push_back({stranger.connection.get(), POLLIN, 0});
  }
  for (const auto& [ticket, node] : present_) polled.push_back({node.connection.get(), POLLIN, 0});
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next_timer() - Clock::now());
  ::poll(polled.data(), polled.size(), static_cast<int>(std::clamp(wait, 0ms, 60'000ms).count()));

  if (polled[0].revents != 0) end(ErrorCode::shut_down, "node 0 was stopped during the rendezvous");
  auto at = polled.begin() + 2;
  for (auto stranger = strangers_.begin(); stranger != strangers_.end() && !roster_.complete();) {
    const bool stays = (at++)->revents == 0 || advance(*stranger);
    stranger = stays ? std::next(stranger) : strangers_.erase(stranger);
  }
  std::erase_if(present_, [&](auto& entry) {
    if (roster_.complete() || !is_disturbed(entry.second.connection.get())) return false;
    drop(entry.first, entry.second.name + " has left");
    return true;
  });
  if (polled[1].revents != 0) accept_strangers(Clock::now());
  if (!roster_.complete()) on_timer(Clock::now());
}

Clock::time_point Gathering::next_timer() const {
  Clock::time_point next = std::min(next_report_, started_ + options_.timeout);
  for (const Stranger& stranger : strangers_) {
    next = std::min(next, stranger.since + options_.handshake_limit);
  }
  if (strangers_.size() >= kMostStrangers) {
    next = std::min(next, strangers_.front().since + kOldStranger);
  }
  return next;
}

void Gathering::on_timer(Clock::time_point now) {
  std::erase_if(strangers_, [&](const Stranger& stranger) {
    if (now < stranger.since + options_.handshake_limit) return false;
    refuse(stranger, "it has not said which node it is in time");
    return true;
  });
  if (strangers_.size() >= kMostStrangers && now >= strangers_.front().since + kOldStranger) {
    refuse(strangers_.front(), "too many connections at once");
    strangers_.pop_front();
  }
  if (now >= started_ + options_.timeout) {
    end(ErrorCode::timeout, "the rendezvous at " + to_string(listener_.at) + " ended after " +
                                elapsed_text(started_, options_.timeout) + ": node 0 (host " +
                                options_.host + ") still waits for " + roster_.missing() +
                                "; is horarun started there, with the same --rendezvous?" +
                                (last_refusal_.empty() ? "" : " Refused last: " + last_refusal_));
  }
  if (now >= next_report_) {
    report();
    next_report_ = now + options_.report_every;
  }
}

void Gathering::accept_strangers(Clock::time_point now) {
  // So many at most in a turn, in which others are served, too.
  for (std::size_t i = 0; i < kMostStrangers && strangers_.size() < kMostStrangers; ++i) {
    auto accepted = accept_from(listener_);
    if (!accepted) return;
    const auto is_from_there = [from = accepted->from.address](const Stranger& stranger) {
      return stranger.from.address == from;
    };
    strangers_.emplace_back(token_, std::move(*accepted), now);
    if (std::ranges::count_if(strangers_, is_from_there) <= kMostFromOneAddress) continue;
    const auto oldest = std::ranges::find_if(strangers_, is_from_there);
    refuse(*oldest, "too many connections from there at once");
    strangers_.erase(oldest);
  }
}

bool Gathering::advance(Stranger& stranger) {
  while (stranger.admission.wants() > 0) {
    const int descriptor = stranger.connection.get();
    const auto state = stranger.reader.read(descriptor, stranger.admission.wants());
    if (state == ExactReader::State::pending) return true;
    if (state == ExactReader::State::ended) {
      refuse(stranger, "it closed the connection before it said which node it is");
      return false;
    }
    const auto answer = stranger.admission.take(stranger.reader.bytes());
    if (!answer) {
      refuse(stranger, answer.error());
      return false;
    }
    // It fits into the empty buffer of a new connection.
    if (!send_all(descriptor, *answer, Clock::now())) return false;
  }
  admit(stranger);
  return false;
}

void Gathering::admit(Stranger& stranger) {
  const JoinRequest& request = *stranger.admission.request();
  const std::string address = to_string(stranger.from.address);
  const std::string rank =
      request.node_rank ? "node " + std::to_string(*request.node_rank) : "a node";
  Present node{std::move(stranger.connection), stranger.admission.take_seals(),
               rank + " (host " + request.host + ", " + address + ")"};
  const auto ticket = roster_.add(request, address);
  if (!ticket) {
    send(node, {.kind = JoinReply::Kind::end, .text = ticket.error(), .nodes = {}});
    end(ErrorCode::invalid_argument, ticket.error());
  }
  Present& present = present_.emplace(*ticket, std::move(node)).first->second;
  if (!roster_.complete()) {
    send(present, {.text = roster_.missing(), .nodes = {roster_.own_node()}});
  }
}

void Gathering::refuse(const Stranger& stranger, const std::string& why) {
  last_refusal_ = "a connection from " + to_string(stranger.from) + ": " + why;
  if (++refusals_ > kMostRefusalsShown) return;
  say("node 0 refused " + last_refusal_ +
      (refusals_ == kMostRefusalsShown ? "; further refusals are not shown" : ""));
}

void Gathering::drop(Roster::Ticket ticket, const std::string& why) {
  roster_.remove(ticket);
  say(why + "; node 0 waits for " + roster_.missing());
}

void Gathering::report() {
  say("node 0 (host " + options_.host + ") waits for " + roster_.missing() + " at " +
      to_string(listener_.at) + ", " + elapsed_text(started_, options_.timeout));
  for (auto& [ticket, node] : present_) {
    send(node, {.text = roster_.missing(), .nodes = {roster_.own_node()}});
  }
}

/// Where it cannot be sent the connection's end shows.
void Gathering::send(Present& node, const JoinReply& reply) const {
  const auto frame = frame_of(encode(reply), &node.seals.send);
  if (!send_all(node.connection.get(), frame, Clock::now() + kSendLimit)) {
    ::shutdown(node.connection.get(), SHUT_RDWR);
  }
}

NodesMet Gathering::go() {
  NodesMet result;
  result.nodes = roster_.nodes();
  const std::vector<Roster::Ticket> order = roster_.order();
  for (std::size_t rank = 1; rank < order.size(); ++rank) {
    Present& node = present_.at(order[rank]);
    send(node, {.kind = JoinReply::Kind::go,
                .text = {},
                .node_rank = static_cast<int>(rank),
                .nodes = result.nodes});
    const Node& described = result.nodes[rank];
    result.joined.push_back({static_cast<int>(rank), described.host, described.address,
                             described.ranks, std::move(node.connection),
                             std::move(node.seals.send), std::move(node.seals.receive)});
  }
  return result;
}

void Gathering::end(ErrorCode code, const std::string& why) {
  for (auto& [ticket, node] : present_) {
    send(node, {.kind = JoinReply::Kind::end, .text = why, .nodes = {}});
  }
  throw Error(code, why);
}

void Gathering::say(const std::string& line) const {
  if (options_.say) options_.say(line);
}

}  // namespace hora::launch
