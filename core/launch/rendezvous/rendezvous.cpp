#include "core/launch/rendezvous/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>

#include "core/base/process.h"
#include "core/launch/network/network.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

/// How often limits are looked at.
constexpr auto kLimitsTick = 20ms;
constexpr auto kConnectLimit = 2s;
constexpr auto kBetweenTrials = 250ms;
/// For what is sent last before the connection is passed on or closed.
constexpr auto kFlushLimit = 5000ms;
/// Later refusals are not printed: any process that can connect could fill a disk.
constexpr int kMostRefusalsShown = 20;
constexpr std::size_t kShownNodes = 16;
constexpr std::size_t kLongestNodeName = 255;

[[noreturn]] void cannot_meet(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

/// "12 s of 300 s".
std::string elapsed_text(Clock::time_point since, std::chrono::milliseconds limit) {
  const auto seconds = [](auto time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  return fmt::format("{} s of {} s", seconds(Clock::now() - since), seconds(limit));
}

/// Small messages go at once; a host that has vanished shows after some time.
void configure(int descriptor) {
  const int on = 1;
  static_cast<void>(::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
}

/// While nothing listens at a port of this host, the kernel may choose this very port for the side
/// that connects, which is then connected to itself (simultaneous open, RFC 9293, section 3.5).
bool is_connected_to_itself(int descriptor) {
  SocketAddress own, other;
  return ::getsockname(descriptor, own.get(), &own.length) == 0 &&
         ::getpeername(descriptor, other.get(), &other.length) == 0 &&
         own.endpoint() == other.endpoint();
}

/// The addresses of a name, in the system's order; at least one. May take as long as the
/// system's resolver does. The error says why there are none.
tl::expected<std::vector<IpAddress>, std::string> resolve(const std::string& host) {
  if (const auto address = parse_address(host)) return std::vector{*address};
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &first); error != 0) {
    return tl::unexpected(
        fmt::format("the name {} cannot be resolved: {}", host,
                    error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, &::freeaddrinfo);
  std::vector<IpAddress> addresses;
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    const auto address = address_of(entry->ai_addr);
    if (address) addresses.push_back(*address);
  }
  if (addresses.empty()) return tl::unexpected("the name " + host + " has no usable address");
  return addresses;
}

/// A socket and where it listens, or its other end.
struct Socket {
  UniqueFd descriptor;
  Endpoint at;
};

/// A listening socket at `wanted` (port 0: any), or errno.
tl::expected<Socket, int> listen_at(const Endpoint& wanted) {
  Socket listener{UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
                  wanted};
  const int descriptor = listener.descriptor.get();
  const int on = 1;
  SocketAddress bound(wanted.address, wanted.port);
  if (!listener.descriptor ||
      ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(descriptor, bound.get(), bound.length) != 0 || ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, bound.get(), &bound.length) != 0) {
    return tl::unexpected(errno);
  }
  listener.at.port = bound.endpoint().port;
  return listener;
}

/// The next connection; nothing where none waits.
std::optional<Socket> accept_from(const Socket& listener) {
  SocketAddress from;
  UniqueFd descriptor(
      ::accept4(listener.descriptor.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!descriptor) return {};
  configure(descriptor.get());
  return Socket{std::move(descriptor), from.endpoint()};
}

/// A connection, or errno; ETIMEDOUT after kConnectLimit.
tl::expected<UniqueFd, int> connect_to(const Endpoint& to) {
  UniqueFd descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = kConnectLimit.count(), .tv_usec = 0};
  const SocketAddress address(to.address, to.port);
  if (!descriptor ||
      ::setsockopt(descriptor.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
      ::connect(descriptor.get(), address.get(), address.length) != 0) {
    return tl::unexpected(errno == EINPROGRESS ? ETIMEDOUT : errno);
  }
  if (is_connected_to_itself(descriptor.get())) return tl::unexpected(ECONNREFUSED);
  configure(descriptor.get());
  return descriptor;
}

/// A name that resolves to loopback on every host.
bool means_loopback(const std::string& host) {
  return host == "localhost" || parse_address(host).has_value();
}

/// Node 0's socket: at the address of tcp://HOST:PORT; at all addresses where HOST is none of this
/// host (a service's before a container), is a name that means loopback here (as a host's own does
/// on Debian), or where the nodes meet in a folder. Nothing where nodes have no ranks, and another
/// one has the address.
std::optional<Socket> listen_as_node0(const RendezvousOptions& options) {
  const RendezvousPlace& place = options.place;
  const auto refuse = [](const Endpoint& at, int error) {
    cannot_meet(
        fmt::format("node 0 cannot listen at {}: {}", to_string(at),
                    error == EADDRINUSE
                        ? "the port is in use on this host, by another job or by a second node 0; "
                          "end that, or choose another port"
                        : std::strerror(error)));
  };
  bool is_here = options.node_rank.has_value();
  tl::expected<std::vector<IpAddress>, std::string> addresses;
  if (!place.in_folder()) addresses = resolve(place.host);
  for (const IpAddress& address : addresses.value_or(std::vector<IpAddress>())) {
    if (address.is_unspecified()) {
      cannot_meet(to_url(place) +
                  " names no single address; name the one of node 0 that the other nodes reach");
    }
    if (address.is_loopback() && !means_loopback(place.host)) {
      is_here = true;
      break;
    }
    auto listener = listen_at({address, place.port});
    if (listener) return std::move(*listener);
    if (listener.error() == EADDRNOTAVAIL) continue;
    if (!options.node_rank && listener.error() == EADDRINUSE) return std::nullopt;
    refuse({address, place.port}, listener.error());
  }
  if (!is_here) return std::nullopt;
  const Endpoint all{IpAddress(), place.port};
  auto listener = listen_at(all);
  if (!listener && !options.node_rank && listener.error() == EADDRINUSE) return std::nullopt;
  if (!listener) refuse(all, listener.error());
  if (!place.in_folder()) {
    options.say(
        fmt::format("{} names no address of this host that others reach: node 0 listens at "
                    "all of them, port {}",
                    place.host, place.port));
  }
  return std::move(*listener);
}

/// The file in a shared folder, of mode 0600, by which node 0 tells where it is: its port, and the
/// addresses of its host. It is gone when the nodes have met, or node 0 ends. Nothing in it is
/// secret.
std::string file_of(const RendezvousOptions& options) {
  return fmt::format("{}/{}.rendezvous", options.place.folder, options.job);
}

class Announcement {
 public:
  Announcement(const RendezvousOptions& options, std::uint16_t port) : path_(file_of(options)) {
    std::string text = std::to_string(port);
    for (const HostAddress& each : this_host_addresses()) {
      if (each.is_candidate()) text += " " + to_string(each.ip());
    }
    if (text.find(' ') == text.npos) text += " 127.0.0.1";
    const internal::NewFile file(path_);
    // Who reads it before it is whole reads it again.
    if (::write(file.descriptor(), text.data(), text.size()) < 0) {
      cannot_meet(fmt::format("{}: {}", in_quotes(path_), std::strerror(errno)));
    }
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;
  ~Announcement() { ::unlink(path_.c_str()); }

 private:
  const std::string path_;
};

/// Where node 0 listens, in the order to try; the error says why that is not known yet.
tl::expected<std::vector<Endpoint>, std::string> find_node0(const RendezvousOptions& options) {
  std::vector<Endpoint> endpoints;
  if (!options.place.in_folder()) {
    const auto addresses = resolve(options.place.host);
    if (!addresses) return tl::unexpected(addresses.error());
    for (const IpAddress& address : *addresses) endpoints.push_back({address, options.place.port});
    return endpoints;
  }
  // Opening a folder of NFS makes it ask the server whether a file has come that was missing
  // before.
  const UniqueFd refreshed(
      ::open(options.place.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string path = file_of(options);
  const auto text = read_input_file(path);
  if (!text) return tl::unexpected(fmt::format("{} {}", in_quotes(path), text.error()));
  const auto words = split_at_spaces(*text);
  const auto port = parse_integer(words.empty() ? "" : words.front(), 1, 65535);
  for (const std::string_view word : words) {
    const auto address = parse_address(std::string(word));
    if (port && address) endpoints.push_back({*address, static_cast<std::uint16_t>(*port)});
  }
  if (endpoints.empty()) return tl::unexpected(path + " is no file of a horarun");
  return endpoints;
}

Join join_of(const RendezvousOptions& options) {
  return {{},           options.job, options.host, options.nodes, options.node_rank.value_or(-1),
          options.ranks};
}

/// Node 0, which waits for the others. Thread rule: one thread.
class RendezvousServer {
 public:
  /// All outlive it.
  RendezvousServer(const RendezvousOptions& options, const SecretKey& token, const Socket& listener)
      : options_(options),
        token_(token),
        listener_(listener),
        own_(join_of(options)),
        next_report_(started_ + options.report_every) {}

  NodesMet run() {
    loop_.watch(listener_.descriptor.get(), POLLIN, [this](short) { accept(); });
    loop_.watch(options_.stop_descriptor, POLLIN, [this](short) {
      end(ErrorCode::shut_down, "node 0 was stopped during the rendezvous");
    });
    loop_.each(kLimitsTick, [this] { on_time(Clock::now()); });
    // One may leave in the turn in which the last has come.
    while (!complete()) loop_.run();
    return go();
  }

 private:
  struct Peer {
    Endpoint from;
    Clock::time_point since = Clock::now();
    std::unique_ptr<Channel> channel = {};
    std::optional<Join> joined = {};       ///< which node it is; none: it has not said so
    std::optional<std::string> gone = {};  ///< why

    bool is_here() const { return joined && !gone; }
    /// "host b (10.0.0.2)".
    std::string name() const {
      return fmt::format("host {} ({})", joined->host, to_string(from.address));
    }
  };

  void accept() {
    auto accepted = accept_from(listener_);
    if (!accepted) return;
    Peer& peer = peers_.emplace_back(Peer{.from = accepted->at});
    peer.channel = std::make_unique<Channel>(
        loop_, connection_of(std::move(accepted->descriptor)), token_, false,
        [this, &peer](Message&& message) { on_message(peer, message); },
        [&peer](const std::string& reason) { peer.gone = reason; });
  }

  void on_message(Peer& peer, const Message& message) {
    const auto* join = std::get_if<Join>(&message);
    if (peer.joined || join == nullptr || complete()) return;
    Join joined = *join;
    joined.host = printable(joined.host, kLongestNodeName);
    const Peer candidate{.from = peer.from, .joined = std::move(joined)};
    const std::string why = disagreement(candidate);
    peer.joined = candidate.joined;
    if (!why.empty()) end(ErrorCode::invalid_argument, printable(why));
    if (complete()) return loop_.stop();
    peer.channel->send(wait_message());
  }

  void on_time(Clock::time_point now) {
    if (complete()) return;
    for (Peer& peer : peers_) {
      if (!peer.joined && !peer.gone && now >= peer.since + options_.handshake_limit) {
        peer.gone = "it has not said which node it is in time";
      }
    }
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (peer->gone) remove(*peer);
      peer = peer->gone ? peers_.erase(peer) : std::next(peer);
    }
    if (now >= started_ + options_.timeout) {
      end(ErrorCode::timeout,
          fmt::format(
              "the rendezvous at {} ended after {}: node 0 (host {}) still waits for {}; is "
              "horarun started there, with the same --rendezvous?{}",
              to_url(options_.place), elapsed_text(started_, options_.timeout), options_.host,
              missing(), last_refusal_.empty() ? "" : " Refused last: " + last_refusal_));
    }
    if (now < next_report_) return;
    next_report_ = now + options_.report_every;
    options_.say(fmt::format("node 0 (host {}) waits for {} at {}, {}", options_.host, missing(),
                             to_url(options_.place), elapsed_text(started_, options_.timeout)));
    for (Peer& peer : peers_) {
      if (peer.joined) peer.channel->send(wait_message());
    }
  }

  NodesMet go() {
    std::erase_if(peers_, std::not_fn(&Peer::is_here));
    peers_.sort(
        [](const Peer& a, const Peer& b) { return a.joined->node_rank < b.joined->node_rank; });
    NodesMet result;
    result.nodes.push_back({own_.host, {}, own_.ranks});
    int rank = 0;
    for (Peer& peer : peers_) peer.channel->send(JoinGo{{}, ++rank, own_.host});
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

  /// Tells all nodes, and throws it.
  [[noreturn]] void end(ErrorCode code, const std::string& why) {
    for (Peer& peer : peers_) {
      if (peer.joined) peer.channel->send(JoinEnd{{}, why});
    }
    for (Peer& peer : peers_) {
      if (peer.joined) peer.channel->flush(kFlushLimit);
    }
    throw Error(code, why);
  }

  /// Says of one that is gone why.
  void remove(const Peer& peer) {
    if (peer.joined) {
      return options_.say(fmt::format("{} has left; node 0 waits for {}", peer.name(), missing()));
    }
    last_refusal_ = fmt::format("a connection from {}: {}", to_string(peer.from), *peer.gone);
    if (++refusals_ <= kMostRefusalsShown) options_.say("node 0 refused " + last_refusal_);
  }

  bool complete() const { return count_missing() == 0; }
  int count_missing() const {
    return own_.nodes - 1 - static_cast<int>(std::ranges::count_if(peers_, &Peer::is_here));
  }
  /// "nodes 2, 3 of 4"; where nodes have no ranks before all are there, "2 of 4 nodes".
  std::string missing() const {
    const int count = count_missing();
    if (own_.node_rank < 0) return fmt::format("{} of {} nodes", count, own_.nodes);
    std::vector<std::string> ranks;
    for (int rank = 1; rank < own_.nodes; ++rank) {
      const auto is_it = [&](const Peer& peer) {
        return peer.is_here() && peer.joined->node_rank == rank;
      };
      if (std::ranges::none_of(peers_, is_it)) ranks.push_back(std::to_string(rank));
    }
    return fmt::format("node{} {} of {}", count == 1 ? "" : "s",
                       first_of(std::move(ranks), kShownNodes), own_.nodes);
  }

  /// Why the job cannot start: what differs between two nodes that is equal in a job, or two nodes
  /// of one rank. Names both hosts, and is for all nodes.
  std::string disagreement(const Peer& peer) const {
    const auto facts = [](const Join& join) {
      return std::array{"--rendezvous-id " + join.job, fmt::format("--nnodes {}", join.nodes),
                        std::string(join.node_rank < 0 ? "no --node-rank" : "a --node-rank")};
    };
    const Join& join = *peer.joined;
    const auto own = facts(own_), other = facts(join);
    if (const auto [mine, theirs] = std::ranges::mismatch(own, other); mine != own.end()) {
      return fmt::format("{} has {}, host {} has {}; give all nodes of a job the same", peer.name(),
                         *theirs, own_.host, *mine);
    }
    std::string same = join.node_rank == 0 ? "host " + own_.host : "";
    for (const Peer& each : peers_) {
      if (each.is_here() && each.joined->node_rank == join.node_rank) same = each.name();
    }
    if (join.node_rank < 0 || same.empty()) return {};
    return fmt::format(
        "two nodes have the same rank: {} and {} were both started with --node-rank {}; give each "
        "node its own, 0 to {}",
        same, peer.name(), join.node_rank, own_.nodes - 1);
  }

  JoinWait wait_message() const { return {{}, missing(), options_.host}; }

  const RendezvousOptions& options_;
  const SecretKey& token_;
  const Socket& listener_;
  const Join own_;
  EventLoop loop_;
  std::list<Peer> peers_;  ///< in order of arrival
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_;
  int refusals_ = 0;
  std::string last_refusal_;
};

/// A node that joins node 0: connects to it, again and again until it is there, and waits with it
/// for the others. Thread rule: one thread.
class RendezvousClient {
 public:
  /// Both outlive it.
  RendezvousClient(const RendezvousOptions& options, const SecretKey& token)
      : options_(options), token_(token), next_report_(started_ + options.report_every) {}

  NodesMet run() {
    loop_.watch(options_.stop_descriptor, POLLIN, [this](short) {
      throw Error(ErrorCode::shut_down, self() + " was stopped while it waited for " + waits_for_);
    });
    loop_.each(kLimitsTick, [this] { on_time(Clock::now()); });
    loop_.run();
    return std::move(*result_);
  }

 private:
  void on_time(Clock::time_point now) {
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
    }
  }

  /// To the next endpoint, or to what is found anew.
  void connect() {
    next_trial_ = Clock::now() + kBetweenTrials;
    if (endpoints_.empty()) {
      auto found = find_node0(options_);
      if (!found) {
        waits_for_ = "node 0: " + found.error();
        return;
      }
      endpoints_ = std::move(*found);
    }
    at_ = endpoints_.front();
    endpoints_.erase(endpoints_.begin());
    auto socket = connect_to(at_);
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
        loop_, connection_of(std::move(*socket)), token_, true,
        [this](Message&& message) { on_message(message); },
        [this](const std::string& reason) { on_end(reason); });
  }

  void on_message(const Message& message) {
    last_heard_ = Clock::now();
    const auto heard_of = [&](const std::string& host) {
      joined_ = true;
      node0_ =
          fmt::format("node 0 (host {}, {})", printable(host, kLongestNodeName), to_string(at_));
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

  void on_end(const std::string& reason) {
    if (joined_) {
      throw Error(ErrorCode::transport,
                  fmt::format("{} has gone while {} waited for {}", node0_, self(), waits_for_));
    }
    lost_ = true;
    const bool refused = channel_ && channel_->refused();
    waits_for_ = fmt::format("{}: {}{}", node0_, reason,
                             refused ? "" : " (has it another token, or another version of hora?)");
    // In a folder there may be the address of an earlier job.
    if (refused && !options_.place.in_folder()) {
      throw Error(ErrorCode::invalid_argument, self() + " cannot join " + waits_for_);
    }
  }

  std::string self() const {
    return fmt::format(
        "{} (host {})",
        options_.node_rank ? fmt::format("node {}", *options_.node_rank) : "this node",
        options_.host);
  }

  const RendezvousOptions& options_;
  const SecretKey& token_;
  EventLoop loop_;
  Clock::time_point started_ = Clock::now();
  Clock::time_point next_report_, next_trial_ = started_;
  std::vector<Endpoint> endpoints_;  ///< that have not been tried in this trial
  Endpoint at_;                      ///< the one that is
  std::unique_ptr<Channel> channel_;
  bool lost_ = false;    ///< channel_ is of no more use
  bool joined_ = false;  ///< node 0 has answered
  Clock::time_point last_heard_;
  std::string node0_, waits_for_ = "node 0";  ///< with why
  std::optional<NodesMet> result_;
};

}  // namespace

NodesMet meet(const RendezvousOptions& options, const SecretKey& token) {
  ::signal(SIGPIPE, SIG_IGN);
  if (options.node_rank.value_or(0) == 0) {
    if (const auto listener = listen_as_node0(options)) {
      std::optional<Announcement> announcement;
      if (options.place.in_folder()) announcement.emplace(options, listener->at.port);
      return RendezvousServer(options, token, *listener).run();
    }
  }
  return RendezvousClient(options, token).run();
}

}  // namespace hora::launch
