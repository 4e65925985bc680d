#include "tests/support/threads/thread_network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace hora::test {

class ThreadNetwork::Member final : public PointToPoint {
 public:
  Member(ThreadNetwork& network, int index) : network_(network), index_(index) {}

  int index() const override { return index_; }
  int size() const override { return static_cast<int>(network_.members_.size()); }

  Request send(int to, int tag, std::span<const std::byte> bytes) override {
    network_.inspect_(index_, bytes);
    const std::lock_guard lock(network_.mutex_);
    Message message;
    message.source = bytes;
    message.eager = network_.random_() % 2 == 0;
    message.questions = static_cast<int>(network_.random_() % 4);
    message.sent = std::make_shared<bool>(message.eager);
    if (message.eager) message.copy.assign(bytes.begin(), bytes.end());
    Open entry;
    entry.sent = message.sent;
    network_.under_way_[{index_, to, tag}].push_back(std::move(message));
    return open(std::move(entry));
  }

  Request receive(int from, int tag, std::span<std::byte> bytes) override {
    network_.inspect_(index_, bytes);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xCD});
    const std::lock_guard lock(network_.mutex_);
    Open entry;
    entry.channel = {from, index_, tag};
    entry.target = bytes;
    entry.is_receive = true;
    return open(std::move(entry));
  }

  bool test(Request request) override {
    const std::lock_guard lock(network_.mutex_);
    const auto found = std::ranges::find(open_, request, &Open::request);
    if (found == open_.end()) throw std::logic_error("test of a request that is not open");
    const bool done = found->is_receive
                          ? is_first(*found) && network_.arrive(found->channel, found->target)
                          : *found->sent;
    if (done) open_.erase(found);
    return done;
  }

 private:
  struct Open {
    Channel channel{};
    std::span<std::byte> target;
    bool is_receive = false;
    std::shared_ptr<bool> sent;
    Request request = 0;
  };

  Request open(Open entry) {
    entry.request = next_++;
    open_.push_back(std::move(entry));
    return open_.back().request;
  }
  /// Receives of one channel take its messages in the order in which they were posted.
  bool is_first(const Open& receive) const {
    const auto first = std::ranges::find_if(open_, [&](const Open& other) {
      return other.is_receive && other.channel == receive.channel;
    });
    return first->request == receive.request;
  }

  ThreadNetwork& network_;
  int index_;
  Request next_ = 0;
  std::vector<Open> open_;  ///< in the order in which they were posted
};

ThreadNetwork::ThreadNetwork(int members, std::uint64_t seed, Inspect inspect)
    : random_(seed), inspect_(std::move(inspect)) {
  for (int index = 0; index < members; ++index) {
    members_.push_back(std::make_unique<Member>(*this, index));
  }
}

ThreadNetwork::~ThreadNetwork() = default;

PointToPoint& ThreadNetwork::member(int index) {
  return *members_.at(static_cast<std::size_t>(index));
}

bool ThreadNetwork::arrive(const Channel& channel, std::span<std::byte> target) {
  auto& messages = under_way_[channel];
  if (messages.empty() || messages.front().questions-- > 0) return false;
  const Message& message = messages.front();
  const std::span<const std::byte> bytes = message.eager ? message.copy : message.source;
  if (bytes.size() != target.size()) throw std::logic_error("a message of another length");
  std::ranges::copy(bytes, target.begin());
  *message.sent = true;
  messages.pop_front();
  return true;
}

}  // namespace hora::test
