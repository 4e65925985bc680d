#include "tests/support/message_network.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace hora::internal::test {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error(what);
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace

class MessageNetwork::Member final : public PointToPoint {
 public:
  Member(MessageNetwork& network, int own_index, int members)
      : PointToPoint(own_index, members), network_(network), index_(own_index) {}

  Request send(int to, int tag, std::span<const std::byte> bytes) override {
    check(to, tag);
    if (network_.inspect_) network_.inspect_(index_, bytes);
    const std::lock_guard lock(network_.mutex_);
    network_.forbid_overlap(index_, bytes, false);
    Transfer transfer;
    transfer.owner = index_;
    transfer.copy.assign(bytes.begin(), bytes.end());
    transfer.tests = network_.random_() % 4;
    const Request request = open({});
    if (network_.random_() % 2 == 0) {
      complete(request);
    } else {
      transfer.request = request;
      transfer.source = bytes;
    }
    network_.channels_[{index_, to, tag}].sends.push_back(std::move(transfer));
    network_.sent_.emplace(index_, to, bytes.size());
    return request;
  }

  Request receive(int from, int tag, std::span<std::byte> bytes) override {
    check(from, tag);
    if (network_.inspect_) network_.inspect_(index_, bytes);
    const std::lock_guard lock(network_.mutex_);
    network_.forbid_overlap(index_, bytes, true);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xCD});
    Transfer transfer;
    transfer.owner = index_;
    const Channel channel{from, index_, tag};
    const Request request = transfer.request = open(channel);
    transfer.target = bytes;
    network_.channels_[channel].receives.push_back(std::move(transfer));
    return request;
  }

  bool test(Request request) override {
    const std::lock_guard lock(network_.mutex_);
    const auto slot = static_cast<std::size_t>(request);
    require(request >= 0 && slot < requests_.size() && requests_[slot].state != State::free,
            "test of request " + std::to_string(request) + ", which is not open");
    if (network_.delivery_ == Delivery::by_tests && requests_[slot].state == State::open) {
      network_.deliver_if_tested_enough(requests_[slot].receives_from, request);
    }
    if (requests_[slot].state != State::complete) return false;
    requests_[slot].state = State::free;
    return true;
  }

  bool cancel(Request request) override {
    const std::lock_guard lock(network_.mutex_);
    OpenRequest& own = requests_.at(static_cast<std::size_t>(request));
    require(own.state != State::free, "a receive that is not open is cancelled");
    if (own.state == State::open && !network_.cancel(own.receives_from, request)) return false;
    own.state = State::free;
    return true;
  }

  void complete(Request request) {
    requests_[static_cast<std::size_t>(request)].state = State::complete;
  }
  std::size_t open_requests() const {
    return requests_.size() - static_cast<std::size_t>(
                                  std::ranges::count(requests_, State::free, &OpenRequest::state));
  }

 private:
  enum class State { free, open, complete };
  struct OpenRequest {
    State state = State::free;
    Channel receives_from{};  ///< of a receive
  };

  void check(int peer, int tag) const {
    require(peer >= 0 && peer < size() && peer != index_,
            "member " + std::to_string(index_) + " talks to " + std::to_string(peer));
    require(tag >= 0 && tag <= 32767, "tag " + std::to_string(tag));
  }

  Request open(const Channel& receives_from) {
    auto slot = std::ranges::find(requests_, State::free, &OpenRequest::state);
    if (slot == requests_.end()) slot = requests_.emplace(slot);
    *slot = {State::open, receives_from};
    return static_cast<Request>(slot - requests_.begin());
  }

  MessageNetwork& network_;
  int index_;
  std::vector<OpenRequest> requests_;
};

MessageNetwork::MessageNetwork(int members, std::uint64_t seed, Delivery delivery, Inspect inspect)
    : random_(seed), delivery_(delivery), inspect_(std::move(inspect)) {
  for (int index = 0; index < members; ++index) {
    members_.push_back(std::make_unique<Member>(*this, index, members));
  }
}

MessageNetwork::~MessageNetwork() = default;

PointToPoint& MessageNetwork::member(int index) {
  return *members_.at(static_cast<std::size_t>(index));
}

bool MessageNetwork::deliver_one() {
  const std::lock_guard lock(mutex_);
  std::vector<decltype(channels_)::iterator> ready;
  for (auto channel = channels_.begin(); channel != channels_.end(); ++channel) {
    if (channel->second.can_deliver()) ready.push_back(channel);
  }
  if (ready.empty()) return false;
  deliver(ready[random_() % ready.size()]);
  return true;
}

void MessageNetwork::deliver_if_tested_enough(const Channel& channel,
                                              PointToPoint::Request receive) {
  const auto found = channels_.find(channel);  // none for a send
  if (found == channels_.end() || !found->second.can_deliver()) return;
  Queues& queues = found->second;
  if (queues.receives.front().request != receive || queues.sends.front().tests-- > 0) return;
  deliver(found);
}

bool MessageNetwork::cancel(const Channel& channel, PointToPoint::Request receive) {
  const auto found = channels_.find(channel);
  require(found != channels_.end(), "a send is cancelled");
  auto& receives = found->second.receives;
  const auto transfer = std::ranges::find(receives, receive, &Transfer::request);
  const auto position = static_cast<std::size_t>(transfer - receives.begin());
  if (position < found->second.sends.size()) return false;
  receives.erase(transfer);
  return true;
}

void MessageNetwork::deliver(decltype(channels_)::iterator channel) {
  Queues& queues = channel->second;
  const Transfer send = std::move(queues.sends.front());
  const Transfer receive = std::move(queues.receives.front());
  queues.sends.pop_front();
  queues.receives.pop_front();
  if (queues.sends.empty() && queues.receives.empty()) channels_.erase(channel);
  require(send.copy.size() == receive.target.size(),
          std::to_string(send.copy.size()) + " bytes sent, " +
              std::to_string(receive.target.size()) + " expected");
  std::ranges::copy(send.copy, receive.target.begin());
  if (send.request != -1) {
    require(std::ranges::equal(send.copy, send.source), "memory changed while it was being sent");
    members_[static_cast<std::size_t>(send.owner)]->complete(send.request);
  }
  members_[static_cast<std::size_t>(receive.owner)]->complete(receive.request);
}

std::size_t MessageNetwork::left_over() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& member : members_) count += member->open_requests();
  for (const auto& [channel, queues] : channels_) {
    count += queues.sends.size() + queues.receives.size();
  }
  return count;
}

void MessageNetwork::forbid_overlap(int owner, std::span<const std::byte> memory,
                                    bool also_with_sends) const {
  for (const auto& [channel, queues] : channels_) {
    for (const Transfer& receive : queues.receives) {
      require(receive.owner != owner || !overlap(receive.target, memory),
              "memory that is being received into is used");
    }
    for (const Transfer& send : queues.sends) {
      require(!also_with_sends || send.owner != owner || !overlap(send.source, memory),
              "a receive into memory that is being sent");
    }
  }
}

}  // namespace hora::internal::test
