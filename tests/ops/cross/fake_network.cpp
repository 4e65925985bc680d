#include "tests/ops/cross/fake_network.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace hora::test {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) {
    throw std::logic_error(what);
  }
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

}  // namespace

class FakeNetwork::Member : public PointToPoint {
 public:
  Member(FakeNetwork& network, int index) : network_(network), index_(index) {}

  int index() const override { return index_; }
  int size() const override { return static_cast<int>(network_.members_.size()); }

  Request send(int to, int tag, std::span<const std::byte> bytes) override {
    check(to, tag);
    network_.forbid_overlap(index_, bytes, false);
    Transfer transfer;
    transfer.owner = index_;
    transfer.copy.assign(bytes.begin(), bytes.end());
    const Request request = open();
    if (network_.random_() % 2 == 0) {
      state_[static_cast<std::size_t>(request)] = State::complete;
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
    network_.forbid_overlap(index_, bytes, true);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xCD});
    Transfer transfer;
    transfer.owner = index_;
    transfer.request = open();
    transfer.target = bytes;
    const Request request = transfer.request;
    network_.channels_[{from, index_, tag}].receives.push_back(std::move(transfer));
    return request;
  }

  bool test(Request request) override {
    const auto slot = static_cast<std::size_t>(request);
    require(request >= 0 && slot < state_.size() && state_[slot] != State::free,
            "test of request " + std::to_string(request) + ", which is not open");
    if (state_[slot] != State::complete) {
      return false;
    }
    state_[slot] = State::free;
    return true;
  }

  void complete(Request request) { state_[static_cast<std::size_t>(request)] = State::complete; }
  std::size_t open_requests() const {
    return static_cast<std::size_t>(std::count_if(
        state_.begin(), state_.end(), [](State state) { return state != State::free; }));
  }

 private:
  enum class State { free, open, complete };

  void check(int peer, int tag) const {
    require(peer >= 0 && peer < size() && peer != index_,
            "member " + std::to_string(index_) + " talks to " + std::to_string(peer));
    require(tag >= 0 && tag <= 32767, "tag " + std::to_string(tag));
  }

  Request open() {
    const auto slot = std::find(state_.begin(), state_.end(), State::free);
    const auto request = static_cast<Request>(slot - state_.begin());
    if (slot == state_.end()) {
      state_.push_back(State::open);
    } else {
      *slot = State::open;
    }
    return request;
  }

  FakeNetwork& network_;
  int index_;
  std::vector<State> state_;
};

FakeNetwork::FakeNetwork(int members, std::mt19937_64& random) : random_(random) {
  for (int index = 0; index < members; ++index) {
    members_.push_back(std::make_unique<Member>(*this, index));
  }
}

FakeNetwork::~FakeNetwork() = default;

PointToPoint& FakeNetwork::member(int index) {
  return *members_.at(static_cast<std::size_t>(index));
}

bool FakeNetwork::deliver_one() {
  std::vector<decltype(channels_)::iterator> ready;
  for (auto channel = channels_.begin(); channel != channels_.end(); ++channel) {
    if (!channel->second.sends.empty() && !channel->second.receives.empty()) {
      ready.push_back(channel);
    }
  }
  if (ready.empty()) {
    return false;
  }
  const auto channel = ready[random_() % ready.size()];
  Queues& queues = channel->second;
  const Transfer send = std::move(queues.sends.front());
  const Transfer receive = std::move(queues.receives.front());
  queues.sends.pop_front();
  queues.receives.pop_front();
  if (queues.sends.empty() && queues.receives.empty()) {
    channels_.erase(channel);
  }
  require(send.copy.size() == receive.target.size(),
          std::to_string(send.copy.size()) + " bytes sent, " +
              std::to_string(receive.target.size()) + " expected");
  std::copy(send.copy.begin(), send.copy.end(), receive.target.begin());
  if (send.request != -1) {
    require(std::equal(send.copy.begin(), send.copy.end(), send.source.begin()),
            "memory changed while it was being sent");
    members_[static_cast<std::size_t>(send.owner)]->complete(send.request);
  }
  members_[static_cast<std::size_t>(receive.owner)]->complete(receive.request);
  return true;
}

std::size_t FakeNetwork::left_over() const {
  std::size_t count = 0;
  for (const auto& member : members_) {
    count += member->open_requests();
  }
  for (const auto& [channel, queues] : channels_) {
    count += queues.sends.size() + queues.receives.size();
  }
  return count;
}

void FakeNetwork::forbid_overlap(int owner, std::span<const std::byte> memory,
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

}  // namespace hora::test
