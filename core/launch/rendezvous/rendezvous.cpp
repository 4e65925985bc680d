#include "core/launch/rendezvous/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <utility>

#include "core/launch/rendezvous/store.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

/// How often limits are looked at.
constexpr auto kLimitsTick = 20ms;
constexpr auto kConnectLimit = 3000ms, kBetweenTrials = 250ms;
/// For what is sent last before the connection is passed on or closed.
constexpr auto kFlushLimit = 5000ms;
/// Connections that have not proved the token: so many, and so many from one address, of which the
/// oldest goes at once where there are more: it is idle, or an attack.
constexpr std::ptrdiff_t kMostPending = 16, kMostFromOneAddress = 4;
/// Those this old make room for new ones where there are too many.
constexpr auto kOldPending = 1000ms;
/// The longest message before a connection has said which node it is, in bytes.
constexpr std::size_t kLongestJoin = 4096;
/// Later refusals are not printed: any process that can connect could fill a disk.
constexpr int kMostRefusalsShown = 20;
constexpr int kShownNodes = 16;
constexpr int kMostRanksOfNode = 65536;
constexpr std::size_t kLongestNodeName = 255;

/// "12 s of 300 s".
std::string elapsed_text(Clock::time_point since, std::chrono::milliseconds limit) {
  const auto seconds = [](auto time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  return fmt::format("{} s of {} s", seconds(Clock::now() - since), seconds(limit));
}

Join join_of(const RendezvousOptions& options) {
  Join join;
  join.version = options.version;
  join.job = options.job;
  join.host = options.host;
  join.nodes = options.nodes;
  join.node_rank = options.node_rank.value_or(-1);
  join.ranks = options.ranks;
  return join;
}

/// Node 0, which waits for the others. Thread rule: one thread.
class RendezvousServer {
 public:
  /// All outlive it.
  RendezvousServer(const RendezvousOptions& options, const SecretKey& token,
                   const Listener& listener)
      : options_(options),
        token_(token),
        listener_(listener),
        own_(join_of(options)),
        next_report_(started_ + options.report_every) {}

  NodesMet run();

 private:
  struct Peer {
    Endpoint from;
    Clock::time_point since = Clock::now();
    std::unique_ptr<Channel> channel = {};
    std::optional<Join> joined = {};       ///< which node it is; none: it has not said so
    std::optional<std::string> gone = {};  ///< why
  };

  void accept();
  void on_message(Peer& peer, const Message& message);
  void admit(Peer& peer, Join join);
  void on_time(Clock::time_point now);
  void report();
  NodesMet go();
  [[noreturn]] void end(ErrorCode code, const std::string& why);
  void remove(const Peer& peer);
  bool complete() const { return count_joined() + 1 == own_.nodes; }
  int count_joined() const {
    return static_cast<int>(std::ranges::count_if(
        peers_, [](const Peer& peer) { return peer.joined.has_value() && !peer.gone; }));
  }
  std::ptrdiff_t count_pending() const {
    return std::ranges::count_if(peers_, [](const Peer& peer) { return !peer.joined; });
  }
  std::string missing() const;
  std::string disagreement(const Join& join, const Endpoint& from) const;
  JoinWait wait_message() const;

  const RendezvousOptions& options_;
  const SecretKey& token_;
  const Listener& listener_;
  const Join own_;
  EventLoop loop_;
  std::list<Peer> peers_;  ///< in order of arrival
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_;
  int refusals_ = 0;
  std::string last_refusal_;
};

NodesMet RendezvousServer::run() {
  loop_.watch(listener_.descriptor.get(), POLLIN, [this](short) { accept(); });
  loop_.watch(options_.stop_descriptor, POLLIN, [this](short) {
    end(ErrorCode::shut_down, "node 0 was stopped during the rendezvous");
  });
  loop_.each(kLimitsTick, [this] { on_time(Clock::now()); });
  // One may leave in the turn in which the last has come.
  while (!complete()) loop_.run();
  return go();
}

void RendezvousServer::accept() {
  // Who connects waits in the listening socket's queue while there are too many.
  while (count_pending() < kMostPending) {
    auto accepted = accept_from(listener_);
    if (!accepted) return;
    Peer& peer = peers_.emplace_back(Peer{.from = accepted->from});
    peer.channel = std::make_unique<Channel>(
        loop_, connection_of(std::move(accepted->descriptor)), token_, false, kLongestJoin,
        [this, &peer](Message&& message) { on_message(peer, message); },
        [&peer](const std::string& reason) { peer.gone = reason; });
    const auto is_from_there = [&](const Peer& other) {
      return !other.joined && other.from.address == peer.from.address;
    };
    if (std::ranges::count_if(peers_, is_from_there) <= kMostFromOneAddress) continue;
    const auto oldest = std::ranges::find_if(peers_, is_from_there);
    oldest->gone = "too many connections from there at once";
    remove(*oldest);
    peers_.erase(oldest);
  }
}

void RendezvousServer::on_message(Peer& peer, const Message& message) {
  if (peer.gone || complete() || std::holds_alternative<Heartbeat>(message)) return;
  const auto* join = std::get_if<Join>(&message);
  if (peer.joined || join == nullptr) {
    peer.gone = "it has sent what is none of a node that joins";
    return;
  }
  admit(peer, *join);
}

void RendezvousServer::admit(Peer& peer, Join join) {
  for (std::string* text : {&join.version, &join.job, &join.host}) {
    *text = printable(*text, kLongestNodeName);
  }
  const std::string why = disagreement(join, peer.from);
  peer.joined = std::move(join);
  if (!why.empty()) end(ErrorCode::invalid_argument, why);
  if (complete()) return loop_.stop();
  peer.channel->send(wait_message());
}

/// Why the job cannot start: two nodes of one rank, another number of nodes, another version. Names
/// both hosts, and is for all nodes.
std::string RendezvousServer::disagreement(const Join& join, const Endpoint& from) const {
  const std::string other = fmt::format("host {} ({})", join.host, to_string(from.address)),
                    first = "host " + own_.host;
  const int last = own_.nodes - 1;
  if (join.version != own_.version) {
    return fmt::format("{} has hora {}, {} has {}; install the same version on all hosts", other,
                       join.version, first, own_.version);
  }
  if (join.job != own_.job) {
    return fmt::format(
        "{} was started for the job {}, {} for {}; give each job a place of its own to meet", other,
        join.job, first, own_.job);
  }
  if (join.nodes != own_.nodes) {
    return fmt::format(
        "{} was started with --nnodes {}, {} with --nnodes {}; give the same number on all nodes",
        other, join.nodes, first, own_.nodes);
  }
  if (join.ranks < 1 || join.ranks > kMostRanksOfNode) {
    return fmt::format("{} was started with --nproc-per-node {}; allowed: 1 to {}", other,
                       join.ranks, kMostRanksOfNode);
  }
  const bool given = join.node_rank >= 0;
  if (given != (own_.node_rank >= 0)) {
    return fmt::format(
        "{} was started with --node-rank, {} without; give it on all nodes or on none",
        given ? other : first, given ? first : other);
  }
  if (!given) return {};
  if (join.node_rank > last) {
    return fmt::format("{} was started with --node-rank {} of {} nodes; node ranks are 0 to {}",
                       other, join.node_rank, own_.nodes, last);
  }
  std::string same =
      join.node_rank == 0 ? fmt::format("{} ({})", first, to_string(listener_.at.address)) : "";
  for (const Peer& peer : peers_) {
    if (peer.joined && !peer.gone && peer.joined->node_rank == join.node_rank) {
      same = fmt::format("host {} ({})", peer.joined->host, to_string(peer.from.address));
    }
  }
  if (same.empty()) return {};
  return fmt::format(
      "two nodes have the same rank: {} and {} were both started with --node-rank {}; give each "
      "node its own, 0 to {}",
      same, other, join.node_rank, last);
}

void RendezvousServer::on_time(Clock::time_point now) {
  if (complete()) return;
  for (Peer& peer : peers_) {
    if (!peer.joined && !peer.gone && now >= peer.since + options_.handshake_limit) {
      peer.gone = "it has not said which node it is in time";
    }
  }
  const auto oldest = std::ranges::find_if(peers_, [](const Peer& peer) { return !peer.joined; });
  if (count_pending() >= kMostPending && !oldest->gone && now >= oldest->since + kOldPending) {
    oldest->gone = "too many connections at once";
  }
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (peer->gone) remove(*peer);
    peer = peer->gone ? peers_.erase(peer) : std::next(peer);
  }
  loop_.change(listener_.descriptor.get(), count_pending() < kMostPending ? POLLIN : 0);
  if (now >= started_ + options_.timeout) {
    end(ErrorCode::timeout,
        fmt::format("the rendezvous at {} ended after {}: node 0 (host {}) still waits for {}; is "
                    "horarun started there, with the same --rendezvous?{}",
                    to_string(listener_.at), elapsed_text(started_, options_.timeout),
                    options_.host, missing(),
                    last_refusal_.empty() ? "" : " Refused last: " + last_refusal_));
  }
  if (now >= next_report_) report();
}

/// Says of one that is gone why.
void RendezvousServer::remove(const Peer& peer) {
  if (peer.joined) {
    const std::string name =
        peer.joined->node_rank < 0 ? "a node" : fmt::format("node {}", peer.joined->node_rank);
    return options_.say(fmt::format("{} (host {}, {}) has left; node 0 waits for {}", name,
                                    peer.joined->host, to_string(peer.from.address), missing()));
  }
  last_refusal_ = fmt::format("a connection from {}: {}", to_string(peer.from), *peer.gone);
  if (++refusals_ > kMostRefusalsShown) return;
  options_.say(
      fmt::format("node 0 refused {}{}", last_refusal_,
                  refusals_ == kMostRefusalsShown ? "; further refusals are not shown" : ""));
}

void RendezvousServer::report() {
  next_report_ = Clock::now() + options_.report_every;
  options_.say(fmt::format("node 0 (host {}) waits for {} at {}, {}", options_.host, missing(),
                           to_string(listener_.at), elapsed_text(started_, options_.timeout)));
  for (Peer& peer : peers_) {
    if (peer.joined) peer.channel->send(wait_message());
  }
}

JoinWait RendezvousServer::wait_message() const {
  JoinWait message;
  message.missing = missing();
  message.host = options_.host;
  return message;
}

/// "nodes 2, 3 of 4"; where nodes have no ranks before all are there, "2 of 4 nodes".
std::string RendezvousServer::missing() const {
  const int count = own_.nodes - 1 - count_joined();
  if (own_.node_rank < 0) {
    return fmt::format("{} of {} node{}", count, own_.nodes, own_.nodes == 1 ? "" : "s");
  }
  std::vector<bool> present(static_cast<std::size_t>(own_.nodes));
  present[0] = true;
  for (const Peer& peer : peers_) {
    if (peer.joined && !peer.gone) present[static_cast<std::size_t>(peer.joined->node_rank)] = true;
  }
  std::vector<std::size_t> shown;
  for (std::size_t rank = 0; rank < present.size() && shown.size() < kShownNodes; ++rank) {
    if (!present[rank]) shown.push_back(rank);
  }
  const std::string more =
      count > kShownNodes ? fmt::format(" and {} more", count - kShownNodes) : "";
  return fmt::format("node{} {}{} of {}", count == 1 ? "" : "s", fmt::join(shown, ", "), more,
                     own_.nodes);
}

NodesMet RendezvousServer::go() {
  std::erase_if(peers_, [](const Peer& peer) { return !peer.joined || peer.gone; });
  peers_.sort(
      [](const Peer& a, const Peer& b) { return a.joined->node_rank < b.joined->node_rank; });
  NodesMet result;
  result.nodes.push_back({own_.host, to_string(listener_.at.address), own_.ranks});
  int rank = 0;
  for (Peer& peer : peers_) {
    JoinGo message;
    message.node_rank = ++rank;
    message.host = own_.host;
    peer.channel->send(message);
  }
  // Where it cannot be sent the connection's end shows.
  for (Peer& peer : peers_) {
    const bool sent = peer.channel->flush(kFlushLimit);
    Connection connection = peer.channel->release();
    if (!sent) ::shutdown(connection.in.get(), SHUT_RDWR);
    result.nodes.push_back({peer.joined->host, to_string(peer.from.address), peer.joined->ranks,
                            std::move(connection)});
  }
  return result;
}

/// Tells all nodes why, and throws it.
void RendezvousServer::end(ErrorCode code, const std::string& why) {
  JoinEnd message;
  message.reason = why;
  for (Peer& peer : peers_) {
    if (peer.joined) peer.channel->send(message);
  }
  for (Peer& peer : peers_) {
    if (peer.joined) peer.channel->flush(kFlushLimit);
  }
  throw Error(code, why);
}

/// A node that joins node 0: connects to it, again and again until it is there, and waits with it
/// for the others. Thread rule: one thread.
class RendezvousClient {
 public:
  /// Both outlive it.
  RendezvousClient(const RendezvousOptions& options, Store& store)
      : options_(options), store_(store), next_report_(started_ + options.report_every) {}

  NodesMet run();

 private:
  void on_time(Clock::time_point now);
  void connect();
  void on_message(const Message& message);
  void on_end(const std::string& reason);
  std::string self() const {
    return fmt::format(
        "{} (host {})",
        options_.node_rank ? fmt::format("node {}", *options_.node_rank) : "this node",
        options_.host);
  }

  const RendezvousOptions& options_;
  Store& store_;
  EventLoop loop_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_, next_trial_ = started_;
  std::vector<Endpoint> endpoints_;   ///< that have not been tried in this trial
  Endpoint at_;                       ///< the one that is
  const SecretKey* token_ = nullptr;  ///< for it
  std::unique_ptr<Channel> channel_;
  bool lost_ = false;    ///< channel_ is of no more use
  bool joined_ = false;  ///< node 0 has answered
  Clock::time_point last_heard_;
  std::string node0_, waits_for_ = "node 0";  ///< with why
  std::optional<NodesMet> result_;
};

NodesMet RendezvousClient::run() {
  loop_.watch(options_.stop_descriptor, POLLIN, [this](short) {
    throw Error(ErrorCode::shut_down, self() + " was stopped while it waited for " + waits_for_);
  });
  loop_.each(kLimitsTick, [this] { on_time(Clock::now()); });
  loop_.run();
  return std::move(*result_);
}

void RendezvousClient::on_time(Clock::time_point now) {
  if (result_) return;
  if (now >= next_report_) {
    next_report_ = now + options_.report_every;
    options_.say(fmt::format("{} waits for {}, {}", self(), waits_for_,
                             elapsed_text(started_, options_.timeout)));
  }
  if (std::exchange(lost_, false)) {
    channel_.reset();
    next_trial_ = endpoints_.empty() ? now + kBetweenTrials : now;
  }
  if (now >= started_ + options_.timeout) {
    throw Error(ErrorCode::timeout,
                fmt::format("the rendezvous ended after {}: {} still waits for {}; is horarun "
                            "started on node 0, and is its address reachable from here?",
                            elapsed_text(started_, options_.timeout), self(), waits_for_));
  }
  if (!channel_) {
    if (now >= next_trial_) connect();
  } else if (!channel_->authenticated()) {
    if (now < last_heard_ + options_.handshake_limit) return;
    waits_for_ = node0_ + ": it does not answer as a horarun does";
    lost_ = true;
  } else if (now >= last_heard_ + options_.silence_limit) {
    throw Error(ErrorCode::transport,
                fmt::format("{} has heard nothing from {} for {}; it hangs, or the network between "
                            "them is cut",
                            self(), node0_, elapsed_text(last_heard_, options_.silence_limit)));
  }
}

/// To the next endpoint, or to what the store names anew.
void RendezvousClient::connect() {
  next_trial_ = Clock::now() + kBetweenTrials;
  if (endpoints_.empty()) {
    auto found = store_.find();
    const auto token = found ? store_.token() : tl::unexpected(found.error());
    if (!token) {
      if (found && !store_.token_may_change()) {
        throw Error(ErrorCode::invalid_argument, token.error());
      }
      waits_for_ = "node 0: " + token.error();
      return;
    }
    token_ = *token;
    endpoints_ = std::move(*found);
  }
  at_ = endpoints_.front();
  endpoints_.erase(endpoints_.begin());
  const auto end = std::min(Clock::now() + kConnectLimit, started_ + options_.timeout);
  auto socket = connect_to(at_, options_.stop_descriptor, end);
  if (!socket) {
    const std::string place = to_url(options_.place), at = to_string(at_);
    waits_for_ = fmt::format("node 0 at {}{}: {}", place,
                             place.find(at) == place.npos ? " (" + at + ")" : "",
                             std::strerror(socket.error()));
    if (!endpoints_.empty()) next_trial_ = Clock::now();
    return;
  }
  joined_ = false;
  last_heard_ = Clock::now();
  node0_ = "node 0 at " + to_string(at_);
  channel_ = std::make_unique<Channel>(
      loop_, connection_of(std::move(*socket)), *token_, true, kMostMessageBytes,
      [this](Message&& message) { on_message(message); },
      [this](const std::string& reason) { on_end(reason); });
}

void RendezvousClient::on_message(const Message& message) {
  last_heard_ = Clock::now();
  const auto heard_of = [&](const std::string& host) {
    joined_ = true;
    node0_ = fmt::format("node 0 (host {}, {})", printable(host, kLongestNodeName), to_string(at_));
  };
  if (std::holds_alternative<Heartbeat>(message)) {
    channel_->send(join_of(options_));
  } else if (const auto* end = std::get_if<JoinEnd>(&message)) {
    throw Error(ErrorCode::invalid_argument, printable(end->reason));
  } else if (const auto* wait = std::get_if<JoinWait>(&message)) {
    heard_of(wait->host);
    waits_for_ = fmt::format("{}, with {}", printable(wait->missing), node0_);
  } else if (const auto* go = std::get_if<JoinGo>(&message)) {
    result_.emplace(NodesMet{go->node_rank, {}});
    result_->nodes.push_back(
        {printable(go->host, kLongestNodeName), to_string(at_.address), 0, channel_->release()});
    loop_.stop();
  }
}

void RendezvousClient::on_end(const std::string& reason) {
  if (joined_) {
    throw Error(ErrorCode::transport,
                fmt::format("{} has gone while {} waited for {}", node0_, self(), waits_for_));
  }
  lost_ = true;
  const bool refused = channel_ && channel_->refused();
  waits_for_ = fmt::format("{}: {}{}", node0_, reason,
                           refused ? "" : " (has it another token, or another version of hora?)");
  if (refused && !store_.token_may_change()) {
    throw Error(ErrorCode::invalid_argument, self() + " cannot join " + waits_for_);
  }
}

}  // namespace

NodesMet meet(const RendezvousOptions& options, const char* token_variable) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto store = make_store(options, token_variable);
  if (options.node_rank.value_or(0) == 0) {
    if (const auto listener = store->claim()) {
      return RendezvousServer(options, **store->token(), *listener).run();
    }
  }
  return RendezvousClient(options, *store).run();
}

}  // namespace hora::launch
