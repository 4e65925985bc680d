#include "core/launch/network/probe.h"

#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace hora::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kRound = 100ms;     ///< between two times that an unanswered question is asked
constexpr auto kShortest = 200ms;  ///< a trial in which not all is answered
constexpr auto kQuiet = 150ms;     ///< without a new answer
constexpr int kMostAtOnce = 256;   ///< datagrams read before other descriptors have their turn

enum class Kind : std::uint8_t { question = 0, answer = 1 };

struct Place {
  std::size_t host = 0;
  std::size_t candidate = 0;

  bool operator==(const Place&) const = default;
};

struct Message {
  Kind kind;
  Place from;
  Place to;
};

constexpr std::string_view kMagic = "hprb";
constexpr std::size_t kNonceAt = 5, kFromAt = 21, kToAt = 27, kMessageBytes = 33;
using MessageBytes = std::array<std::byte, kMessageBytes>;

template <std::size_t kBytes>
void put(std::span<std::byte> at, std::size_t number) {
  for (std::size_t i = 0; i < kBytes; ++i) at[i] = static_cast<std::byte>(number >> (8 * i));
}

template <std::size_t kBytes>
std::size_t get(std::span<const std::byte> at) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < kBytes; ++i) {
    number |= std::to_integer<std::size_t>(at[i]) << (8 * i);
  }
  return number;
}

void put_place(std::span<std::byte> at, const Place& place) {
  put<4>(at, place.host);
  put<2>(at.subspan(4), place.candidate);
}

Place get_place(std::span<const std::byte> at) {
  return {get<4>(at), get<2>(at.subspan(4))};
}

MessageBytes encode(const Message& message, const ProbeNonce& nonce) {
  MessageBytes bytes;
  const auto magic = std::as_bytes(std::span(kMagic.data(), kMagic.size()));
  std::ranges::copy(magic, bytes.begin());
  bytes[kMagic.size()] = static_cast<std::byte>(message.kind);
  std::ranges::copy(nonce, bytes.begin() + kNonceAt);
  put_place(std::span(bytes).subspan(kFromAt), message.from);
  put_place(std::span(bytes).subspan(kToAt), message.to);
  return bytes;
}

std::optional<Message> decode(std::span<const std::byte> bytes, const ProbeNonce& nonce) {
  const auto magic = std::as_bytes(std::span(kMagic.data(), kMagic.size()));
  if (bytes.size() != kMessageBytes || !std::ranges::equal(bytes.first(kMagic.size()), magic) ||
      bytes[kMagic.size()] > static_cast<std::byte>(Kind::answer) ||
      ::sodium_memcmp(bytes.data() + kNonceAt, nonce.data(), nonce.size()) != 0) {
    return {};
  }
  return Message{static_cast<Kind>(bytes[kMagic.size()]), get_place(bytes.subspan(kFromAt)),
                 get_place(bytes.subspan(kToAt))};
}

/// A datagram that cannot be sent counts as one that is lost.
void send_to(int descriptor, const ProbeEndpoint& to, const MessageBytes& bytes) {
  const SocketAddress address(to.address, to.port);
  static_cast<void>(::sendto(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                             address.get(), address.length));
}

UniqueFd bind_to(const IpAddress& address, std::uint16_t& port) {
  const int family = address.family == Family::ipv4 ? AF_INET : AF_INET6;
  UniqueFd descriptor(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  SocketAddress bound(address, 0);
  if (!descriptor || ::bind(descriptor.get(), bound.get(), bound.length) != 0 ||
      ::getsockname(descriptor.get(), bound.get(), &bound.length) != 0) {
    return {};
  }
  port = bound.port();
  return descriptor;
}

}  // namespace

Probe::Probe(std::size_t host, const ProbeNonce& nonce, std::span<const IpAddress> candidates)
    : host_(host), nonce_(nonce) {
  for (const IpAddress& address : candidates) {
    Socket& made = sockets_.emplace_back();
    made.address = address;
    made.descriptor = bind_to(address, made.port);
  }
}

std::vector<ProbeEndpoint> Probe::endpoints() const {
  std::vector<ProbeEndpoint> endpoints;
  for (const Socket& socket : sockets_) endpoints.push_back({socket.address, socket.port});
  return endpoints;
}

void Probe::start(std::vector<ProbePeer> peers, Clock::time_point now) {
  peers_ = std::move(peers);
  for (const ProbePeer& peer : peers_) {
    for (std::size_t to = 0; to < peer.endpoints.size(); ++to) {
      for (std::size_t from = 0; from < sockets_.size(); ++from) {
        const ProbeEndpoint& endpoint = peer.endpoints[to];
        if (!sockets_[from].descriptor || endpoint.port == 0 ||
            endpoint.address.family != sockets_[from].address.family) {
          continue;
        }
        questions_.push_back({{from, peer.host, to}, endpoint});
      }
    }
  }
  started_ = next_round_ = last_answer_ = now;
  on_timer(now);
}

std::vector<int> Probe::fds() const {
  std::vector<int> descriptors;
  if (!started_) return descriptors;
  for (const Socket& socket : sockets_) {
    if (socket.descriptor) descriptors.push_back(socket.descriptor.get());
  }
  return descriptors;
}

void Probe::on_readable(int fd, Clock::time_point now) {
  const auto at = std::ranges::find_if(
      sockets_, [&](const Socket& socket) { return socket.descriptor.get() == fd; });
  if (at == sockets_.end() || !started_) return;
  const auto candidate = static_cast<std::size_t>(at - sockets_.begin());
  for (int i = 0; i < kMostAtOnce; ++i) {
    std::array<std::byte, kMessageBytes + 1> bytes;  // longer ones show by their length
    SocketAddress from;
    const ssize_t count =
        ::recvfrom(fd, bytes.data(), bytes.size(), MSG_DONTWAIT, from.get(), &from.length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    if (const auto address = from.address()) {
      receive(candidate, std::span(bytes).first(static_cast<std::size_t>(count)),
              {*address, from.port()}, now);
    }
  }
  conclude(now);
}

void Probe::receive(std::size_t candidate, std::span<const std::byte> datagram,
                    const ProbeEndpoint& from, Clock::time_point now) {
  const auto message = decode(datagram, nonce_);
  if (!message || message->to != Place{host_, candidate}) return;
  const auto peer = std::ranges::find(peers_, message->from.host, &ProbePeer::host);
  if (peer == peers_.end() || message->from.candidate >= peer->endpoints.size() ||
      peer->endpoints[message->from.candidate] != from) {
    return;
  }
  if (message->kind == Kind::question) {
    send_to(sockets_[candidate].descriptor.get(), from,
            encode({Kind::answer, message->to, message->from}, nonce_));
    return;
  }
  const ProbePair pair{candidate, message->from.host, message->from.candidate};
  const auto question = std::ranges::find(questions_, pair, &Question::pair);
  if (question == questions_.end() || question->answered) return;
  question->answered = true;
  last_answer_ = now;
}

void Probe::on_timer(Clock::time_point now) {
  if (!started_ || done_) return;
  if (now >= next_round_) {
    ask();
    next_round_ = now + kRound;
  }
  conclude(now);
}

void Probe::ask() {
  for (const Question& question : questions_) {
    if (question.answered) continue;
    const ProbePair& pair = question.pair;
    send_to(sockets_[pair.candidate].descriptor.get(), question.to,
            encode({Kind::question, {host_, pair.candidate}, {pair.peer, pair.peer_candidate}},
                   nonce_));
  }
}

void Probe::conclude(Clock::time_point now) {
  if (done_) return;
  const auto answered_by = [&](const ProbePeer& peer) {
    return std::ranges::any_of(questions_, [&](const Question& question) {
      return question.answered && question.pair.peer == peer.host;
    });
  };
  const bool quiet = now >= *started_ + kShortest && now >= last_answer_ + kQuiet;
  done_ = std::ranges::all_of(questions_, &Question::answered) || now >= *started_ + kLongest ||
          (quiet && std::ranges::all_of(peers_, answered_by));
}

std::optional<Probe::Clock::time_point> Probe::next_timer() const {
  if (!started_ || done_) return {};
  return std::min(next_round_, *started_ + kLongest);
}

std::vector<ProbePair> Probe::result() const {
  std::vector<ProbePair> pairs;
  for (const Question& question : questions_) {
    if (question.answered) pairs.push_back(question.pair);
  }
  std::ranges::sort(pairs);
  return pairs;
}

Reachability merge(std::span<const std::vector<ProbePair>> results,
                   std::span<const HostNetwork> hosts) {
  std::vector<std::size_t> candidates;
  for (const HostNetwork& host : hosts) candidates.push_back(candidates_of(host).size());
  Reachability reachability;
  for (std::size_t host = 0; host < std::min(results.size(), hosts.size()); ++host) {
    for (const ProbePair& pair : results[host]) {
      if (pair.peer >= hosts.size() || pair.peer == host || pair.candidate >= candidates[host] ||
          pair.peer_candidate >= candidates[pair.peer]) {
        continue;
      }
      reachability.add(host, pair.candidate, pair.peer, pair.peer_candidate);
    }
  }
  return reachability;
}

}  // namespace hora::launch
