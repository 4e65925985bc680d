#include "core/launch/rendezvous/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/base/file.h"
#include "core/launch/network/network.h"

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

/// How often limits are looked at.
constexpr auto kLimitsTick = 20ms;
constexpr auto kConnectLimit = 3000ms, kBetweenTrials = 250ms;
/// For what is sent last before the connection is passed on or closed.
constexpr auto kFlushLimit = 5000ms;
/// Connections that have not said which node they are; where there are more, the oldest goes: it is
/// idle, or an attack.
constexpr std::ptrdiff_t kMostPending = 16;
/// The longest message before a connection has said which node it is, in bytes.
constexpr std::size_t kLongestJoin = 4096;
/// Later refusals are not printed: any process that can connect could fill a disk.
constexpr int kMostRefusalsShown = 20;
constexpr std::size_t kShownNodes = 16;
constexpr int kMostRanksOfNode = 65536;
constexpr std::size_t kLongestNodeName = 255;

/// "12 s of 300 s".
std::string elapsed_text(Clock::time_point since, std::chrono::milliseconds limit) {
  const auto seconds = [](auto time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  return fmt::format("{} s of {} s", seconds(Clock::now() - since), seconds(limit));
}

UniqueFd stream_socket(const IpAddress& address) {
  return UniqueFd(::socket(address.system_family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
         own.address() == other.address() && own.port() == other.port();
}

/// Where the kernel would send to a host elsewhere: connecting a datagram socket sends nothing.
std::optional<IpAddress> routed_address(const char* elsewhere) {
  const IpAddress target = *parse_address(elsewhere);
  const UniqueFd descriptor(::socket(target.system_family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress to(target, 9);
  SocketAddress own;
  if (!descriptor || ::connect(descriptor.get(), to.get(), to.length) != 0 ||
      ::getsockname(descriptor.get(), own.get(), &own.length) != 0) {
    return {};
  }
  return own.address();
}

/// The addresses of a name, each once, in the system's order; at least one. May take as long as the
/// system's resolver does. The error says why there are none.
tl::expected<std::vector<IpAddress>, std::string> resolve(const std::string& host) {
  if (const auto address = parse_address(host)) return std::vector{*address};
  addrinfo hints{};
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
    if (!address || address->is_of_one_link()) continue;
    if (std::ranges::find(addresses, *address) == addresses.end()) addresses.push_back(*address);
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
  Socket listener{stream_socket(wanted.address), wanted};
  const int descriptor = listener.descriptor.get();
  const int on = 1;
  SocketAddress bound(wanted.address, wanted.port);
  if (!listener.descriptor ||
      ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(descriptor, bound.get(), bound.length) != 0 || ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, bound.get(), &bound.length) != 0) {
    return tl::unexpected(errno);
  }
  listener.at.port = bound.port();
  return listener;
}

/// The next connection; nothing where none waits.
std::optional<Socket> accept_from(const Socket& listener) {
  SocketAddress from;
  UniqueFd descriptor(
      ::accept4(listener.descriptor.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const auto address = from.address();
  if (!descriptor || !address) return {};
  configure(descriptor.get());
  return Socket{std::move(descriptor), {*address, from.port()}};
}

/// A connection, or errno; ETIMEDOUT at `until`, ECANCELED where `stop` (-1: none) became readable.
tl::expected<UniqueFd, int> connect_to(const Endpoint& to, int stop, Clock::time_point until) {
  UniqueFd descriptor = stream_socket(to.address);
  if (!descriptor) return tl::unexpected(errno);
  const SocketAddress address(to.address, to.port);
  if (::connect(descriptor.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return tl::unexpected(errno);
    // poll() ignores negative descriptors.
    std::array<pollfd, 2> polled{pollfd{descriptor.get(), POLLOUT, 0}, pollfd{stop, POLLIN, 0}};
    while (::poll(polled.data(), polled.size(), 20) <= 0) {
      if (Clock::now() >= until) return tl::unexpected(ETIMEDOUT);
    }
    if (polled[1].revents != 0) return tl::unexpected(ECANCELED);
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    if (error != 0) return tl::unexpected(error);
  }
  if (is_connected_to_itself(descriptor.get())) return tl::unexpected(ECONNREFUSED);
  configure(descriptor.get());
  return descriptor;
}

/// The address under which other hosts most likely reach this one: of --network-interfaces, where
/// they are named; else that by which the route to other networks leads; else of the fastest
/// hardware; else 127.0.0.1.
tl::expected<IpAddress, std::string> own_address(const RendezvousOptions& options) {
  const HostNetwork network{options.host, this_network_stack(), this_host_interfaces()};
  if (!options.network_interfaces.empty()) {
    return choose_named(std::span(&network, 1), options.network_interfaces)
        .map([](const NetworkChoice& choice) { return choice.addresses.front(); });
  }
  // Addresses of documentation (RFC 5737, RFC 3849), which no network has.
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    const auto routed = routed_address(elsewhere);
    if (routed && !routed->is_loopback()) return *routed;
  }
  const std::vector<Candidate> candidates = candidates_of(network);
  const auto best = std::ranges::max_element(candidates, {}, [&](const Candidate& candidate) {
    const Interface& interface = network.interfaces[candidate.interface];
    return std::tuple(interface.hardware, interface.speed);
  });
  return best == candidates.end() ? *parse_address("127.0.0.1") : best->address;
}

/// Where node 0 tells the others how to reach it. Thread rule: one thread.
class Store {
 public:
  virtual ~Store() = default;

  /// Makes this process node 0, which listens from now on; nothing where another is. Throws
  /// Error(invalid_argument) where it cannot be.
  virtual std::optional<Socket> claim() = 0;
  /// Where node 0 listens, in the order to try; the error says why that is not known yet.
  virtual tl::expected<std::vector<Endpoint>, std::string> find() = 0;
  /// The token, after claim() or find(); valid until the next call.
  virtual tl::expected<const SecretKey*, std::string> token() = 0;
  /// Whether node 0 has made it, so that a wrong one may be that of a former job.
  virtual bool token_may_change() const = 0;
};

[[noreturn]] void cannot_meet(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, why);
}

/// A name that resolves to loopback on every host.
bool means_loopback(const std::string& host) {
  return host == "localhost" || parse_address(host).has_value();
}

/// Node 0's listener. Nothing where nodes have no ranks, and another may be node 0.
std::optional<Socket> listen_as_node0(const RendezvousOptions& options, const Endpoint& at) {
  auto listener = listen_at(at);
  if (listener) return std::move(*listener);
  const int error = listener.error();
  if (!options.node_rank && (error == EADDRINUSE || error == EADDRNOTAVAIL)) return std::nullopt;
  cannot_meet(
      fmt::format("node 0 cannot listen at {}: {}", to_string(at),
                  error == EADDRINUSE
                      ? "the port is in use on this host, by another job or by a second node 0; "
                        "end that, or choose another port"
                      : std::strerror(error)));
}

IpAddress own_or_refuse(const RendezvousOptions& options) {
  const auto own = own_address(options);
  if (!own) cannot_meet(own.error());
  return *own;
}

/// tcp://HOST:PORT: node 0 listens there. HOST need not be its own name: where it does not resolve,
/// is no address of this host (a service's address before a container), or, being a name, resolves
/// to loopback (as a host's own name does on Debian), the socket is bound to own_address(). Where
/// nodes have no ranks, the one that has the address (or loopback) is node 0.
class AddressStore : public Store {
 public:
  AddressStore(const RendezvousOptions& options, SecretKey token)
      : options_(options), place_(options.place), token_(std::move(token)) {}

  std::optional<Socket> claim() override;
  tl::expected<std::vector<Endpoint>, std::string> find() override;
  tl::expected<const SecretKey*, std::string> token() override { return &token_; }
  bool token_may_change() const override { return false; }

 private:
  /// `why`: it is not at the address that the user named.
  std::optional<Socket> listen_at_own(const std::string& why);

  const RendezvousOptions& options_;
  const RendezvousPlace& place_;
  SecretKey token_;
};

std::optional<Socket> AddressStore::claim() {
  const auto addresses = resolve(place_.host);
  for (const IpAddress& address : addresses.value_or(std::vector<IpAddress>())) {
    if (address.is_unspecified()) {
      cannot_meet(to_url(place_) +
                  " names no single address; name the one of node 0 that the other nodes reach");
    }
    if (address.is_loopback() && !means_loopback(place_.host)) {
      return listen_at_own(fmt::format("the name {} is {} here, which other hosts do not reach",
                                       place_.host, to_string(address)));
    }
    const Endpoint at{address, place_.port};
    auto listener = listen_at(at);
    if (listener) return std::move(*listener);
    const bool is_elsewhere = listener.error() == EADDRNOTAVAIL || listener.error() == EAFNOSUPPORT;
    if (!is_elsewhere) return listen_as_node0(options_, at);
  }
  if (!options_.node_rank) return std::nullopt;
  return listen_at_own(addresses ? fmt::format("{} ({}) is no address of this host", place_.host,
                                               to_string(addresses->front()))
                                 : addresses.error());
}

std::optional<Socket> AddressStore::listen_at_own(const std::string& why) {
  auto listener = listen_as_node0(options_, {own_or_refuse(options_), place_.port});
  if (listener) {
    options_.say(fmt::format("{}; node 0 listens at {}", why, to_string(listener->at)));
  }
  return listener;
}

/// With own_address() after a name's loopback addresses, as claim() does.
tl::expected<std::vector<Endpoint>, std::string> AddressStore::find() {
  const auto addresses = resolve(place_.host);
  if (!addresses) return tl::unexpected(addresses.error());
  std::vector<Endpoint> endpoints;
  for (const IpAddress& address : *addresses) endpoints.push_back({address, place_.port});
  if (std::ranges::any_of(*addresses, &IpAddress::is_loopback) && !means_loopback(place_.host)) {
    const auto own = own_address(options_);
    if (own) endpoints.push_back({*own, place_.port});
  }
  return endpoints;
}

/// file:///DIR: node 0 listens at any port of own_address(), and the nodes share a folder:
/// DIR/<job>.lock        node 0 holds a lock on it (flock), so that there is one node 0
/// DIR/<job>.rendezvous  its address, port and host; nothing secret
/// DIR/<job>.token       a token made by node 0, where none is given and DIR is the user's alone
/// All are of mode 0600, and are gone when the nodes have met or node 0 ends.
class FolderStore : public Store {
 public:
  /// Without a token node 0 makes one.
  FolderStore(const RendezvousOptions& options, std::optional<SecretKey> token)
      : options_(options),
        folder_(options.place.folder),
        start_(folder_ + "/" + options.job),
        token_is_made_(!token),
        token_(std::move(token)) {}
  ~FolderStore() override {
    if (lock_) remove({".rendezvous", ".token", ".lock"});
  }

  std::optional<Socket> claim() override;
  tl::expected<std::vector<Endpoint>, std::string> find() override;
  tl::expected<const SecretKey*, std::string> token() override;
  bool token_may_change() const override { return token_is_made_; }

 private:
  /// Reads where node 0 is, and its host.
  tl::expected<std::pair<Endpoint, std::string>, std::string> read() const;
  void check_private() const;
  void lock();
  void write(const std::string& end, std::string_view text) const;
  void remove(std::initializer_list<const char*> ends) const {
    for (const char* end : ends) ::unlink((start_ + end).c_str());
  }
  [[noreturn]] void refuse_file(const std::string& end, const std::string& why) const {
    cannot_meet(
        fmt::format("the nodes cannot meet in the folder of {}: {}; --rendezvous file:///DIR "
                    "names a folder of this user that all nodes share",
                    in_quotes(start_ + end), why));
  }

  const RendezvousOptions& options_;
  const std::string folder_, start_;  ///< of the files' paths
  const bool token_is_made_;
  std::optional<SecretKey> token_;
  UniqueFd lock_;  ///< of node 0
};

std::optional<Socket> FolderStore::claim() {
  if (token_is_made_) check_private();
  lock();
  if (!lock_ && !options_.node_rank) return std::nullopt;
  if (!lock_) {
    const auto other = read();
    cannot_meet(
        fmt::format("two nodes have the same rank: host {} and host {} both meet as node 0 of "
                    "the job {} in {}; give each node its own --node-rank",
                    other ? other->second : "(unknown)", options_.host, options_.job, folder_));
  }
  remove({".rendezvous", ".token"});  // left by a node 0 that was killed
  if (token_is_made_) {
    const std::string text = new_token_text();
    write(".token", text);
    token_ = token_from_text(text).value();
  }
  auto listener = listen_at({own_or_refuse(options_), 0});
  if (!listener)
    cannot_meet(fmt::format("node 0 cannot listen: {}", std::strerror(listener.error())));
  // Who reads it before it is whole reads it again.
  write(".rendezvous", fmt::format("{} {} {}\n", to_string(listener->at.address), listener->at.port,
                                   options_.host));
  return std::move(*listener);
}

void FolderStore::check_private() const {
  struct stat status {};
  if (::stat(folder_.c_str(), &status) != 0) {
    cannot_meet(fmt::format("the folder {}: {}", in_quotes(folder_), std::strerror(errno)));
  }
  if (S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
      (status.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return;
  }
  cannot_meet(
      fmt::format("no token is given, and none is made in the folder {}, which others may enter; "
                  "chmod 700 it, or give all nodes a token: in a file of mode 0600, or in the "
                  "environment variable {}",
                  in_quotes(folder_), kTokenVariable));
}

/// Where no other process has it.
void FolderStore::lock() {
  UniqueFd lock(::open((start_ + ".lock").c_str(),
                       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, S_IRUSR | S_IWUSR));
  struct stat status {};
  if (!lock || ::fstat(lock.get(), &status) != 0) refuse_file(".lock", std::strerror(errno));
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    refuse_file(".lock", "something of this name exists that is no file of this user");
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return;
    refuse_file(".lock", fmt::format("its file system has no locks ({})", std::strerror(errno)));
  }
  if (::fstat(lock.get(), &status) != 0 || status.st_nlink == 0) {
    refuse_file(".lock", "another job has just met there; start this one again");
  }
  lock_ = std::move(lock);
}

void FolderStore::write(const std::string& end, std::string_view text) const {
  const internal::NewFile file(start_ + end);
  if (::write(file.descriptor(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    refuse_file(end, std::strerror(errno));
  }
}

tl::expected<std::pair<Endpoint, std::string>, std::string> FolderStore::read() const {
  // Opening a folder of NFS makes it ask the server whether a file has come that was missing
  // before.
  const UniqueFd refreshed(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!refreshed) {
    return tl::unexpected(
        fmt::format("the folder {}: {}", in_quotes(folder_), std::strerror(errno)));
  }
  const std::string path = start_ + ".rendezvous";
  const UniqueFd file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!file && errno == ENOENT) return tl::unexpected<std::string>("it has not written there yet");
  std::array<char, 4096> bytes;
  const ssize_t count = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  if (count < 0) return tl::unexpected(path + ": " + std::strerror(errno));
  std::istringstream text(std::string(bytes.data(), static_cast<std::size_t>(count)));
  std::string address, host;
  int port = 0;
  text >> address >> port >> host;
  const auto parsed = parse_address(address);
  if (!text || !parsed || port < 1 || port > 65535) {
    return tl::unexpected(path + " is no file of a horarun");
  }
  return std::pair(Endpoint{*parsed, static_cast<std::uint16_t>(port)}, printable(host, 255));
}

tl::expected<std::vector<Endpoint>, std::string> FolderStore::find() {
  return read().map([](const auto& node0) { return std::vector{node0.first}; });
}

/// Node 0 writes its token before its address.
tl::expected<const SecretKey*, std::string> FolderStore::token() {
  if (token_is_made_ && !lock_) {
    auto token = token_from_file(start_ + ".token");
    if (!token) return tl::unexpected(token.error());
    token_ = std::move(*token);
  }
  return &*token_;
}

std::unique_ptr<Store> make_store(const RendezvousOptions& options, const char* token_variable) {
  std::optional<SecretKey> token;
  if (!options.place.in_folder() || options.token_file || token_variable != nullptr) {
    auto loaded = load_token(options.token_file, token_variable);
    if (!loaded) cannot_meet(loaded.error());
    token = std::move(*loaded);
  }
  if (options.place.in_folder()) return std::make_unique<FolderStore>(options, std::move(token));
  return std::make_unique<AddressStore>(options, std::move(*token));
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
  RendezvousServer(const RendezvousOptions& options, const SecretKey& token, const Socket& listener)
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

    bool is_here() const { return joined && !gone; }
  };

  void accept();
  void on_message(Peer& peer, const Message& message);
  void on_time(Clock::time_point now);
  void report();
  NodesMet go();
  [[noreturn]] void end(ErrorCode code, const std::string& why);
  void remove(const Peer& peer);
  bool complete() const { return count_missing() == 0; }
  int count_missing() const {
    return own_.nodes - 1 - static_cast<int>(std::ranges::count_if(peers_, &Peer::is_here));
  }
  std::string missing() const;
  std::string disagreement(const Join& join, const Endpoint& from) const;
  JoinWait wait_message() const;

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
  auto accepted = accept_from(listener_);
  if (!accepted) return;
  Peer& peer = peers_.emplace_back(Peer{.from = accepted->at});
  peer.channel = std::make_unique<Channel>(
      loop_, connection_of(std::move(accepted->descriptor)), token_, false, kLongestJoin,
      [this, &peer](Message&& message) { on_message(peer, message); },
      [&peer](const std::string& reason) { peer.gone = reason; });
  const auto is_pending = [](const Peer& other) { return !other.joined && !other.gone; };
  if (std::ranges::count_if(peers_, is_pending) > kMostPending) {
    std::ranges::find_if(peers_, is_pending)->gone = "too many connections at once";
  }
}

void RendezvousServer::on_message(Peer& peer, const Message& message) {
  if (peer.gone || complete() || std::holds_alternative<Heartbeat>(message)) return;
  const auto* sent = std::get_if<Join>(&message);
  if (peer.joined || sent == nullptr) {
    peer.gone = "it has sent what is none of a node that joins";
    return;
  }
  Join join = *sent;
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
    if (peer.is_here() && peer.joined->node_rank == join.node_rank) {
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
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (peer->gone) remove(*peer);
    peer = peer->gone ? peers_.erase(peer) : std::next(peer);
  }
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
  const int count = count_missing();
  if (own_.node_rank < 0) {
    return fmt::format("{} of {} node{}", count, own_.nodes, own_.nodes == 1 ? "" : "s");
  }
  std::vector<int> shown;
  for (int rank = 1; rank < own_.nodes && shown.size() < kShownNodes; ++rank) {
    const auto is_it = [&](const Peer& peer) {
      return peer.is_here() && peer.joined->node_rank == rank;
    };
    if (std::ranges::none_of(peers_, is_it)) shown.push_back(rank);
  }
  const std::size_t more_count = static_cast<std::size_t>(count) - shown.size();
  const std::string more = more_count > 0 ? fmt::format(" and {} more", more_count) : "";
  return fmt::format("node{} {}{} of {}", count == 1 ? "" : "s", fmt::join(shown, ", "), more,
                     own_.nodes);
}

NodesMet RendezvousServer::go() {
  std::erase_if(peers_, std::not_fn(&Peer::is_here));
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
