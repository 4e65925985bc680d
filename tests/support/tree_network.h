/// Messages between node leaders in one process.
#pragma once

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/engine/interfaces.h"

namespace hora::internal::test {

/// In order between each pair: as they were sent, or, with a generator, of a random sender and only
/// in most tries. Thread rule: any thread; with a generator the one that draws from it.
class TreeNetwork {
 public:
  explicit TreeNetwork(int nodes, std::mt19937_64* random = nullptr)
      : random_(random), boxes_(static_cast<std::size_t>(nodes)) {}

  void send(int from, int to, std::span<const std::byte> message) {
    const std::lock_guard lock(mutex_);
    boxes_.at(static_cast<std::size_t>(to)).push_back({from, {message.begin(), message.end()}});
  }
  std::optional<TreeLink::Received> receive(int node) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_.at(static_cast<std::size_t>(node));
    if (box.empty() || (random_ && (*random_)() % 4 == 0)) return std::nullopt;
    auto next = box.begin();
    if (random_) {
      const int sender = box[(*random_)() % box.size()].node;
      next = std::ranges::find(box, sender, &TreeLink::Received::node);
    }
    auto message = std::move(*next);
    box.erase(next);
    return message;
  }

 private:
  std::mt19937_64* random_;
  std::mutex mutex_;
  std::vector<std::deque<TreeLink::Received>> boxes_;
};

class NetworkTreeLink final : public TreeLink {
 public:
  NetworkTreeLink(TreeNetwork& network, int node) : network_(network), node_(node) {}
  void send(int node, std::span<const std::byte> message) override {
    network_.send(node_, node, message);
  }
  std::optional<Received> receive() override { return network_.receive(node_); }
  bool flushed() override { return true; }

 private:
  TreeNetwork& network_;
  int node_;
};

}  // namespace hora::internal::test
