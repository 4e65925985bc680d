/// The nodes of a rendezvous as threads of one process.
#pragma once

#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/rendezvous/sockets.h"

namespace hora::launch::test {

inline constexpr char kToken[] = "the token of this test";

/// The lines of one node.
class Lines {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  bool have(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        lines_, [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }
  /// Waits for it, 20 s at most.
  bool come_to_have(const std::string& part) const {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!have(part)) {
      if (Clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// How a node's rendezvous ended.
struct Outcome {
  std::optional<NodesMet> met;
  std::string error;
};

/// One node: meet() in a thread of its own.
class MeetingNode {
 public:
  MeetingNode(RendezvousOptions options, const char* token = kToken) {
    options.say = [this](const std::string& line) { lines_.add(line); };
    outcome_ = std::async(std::launch::async, [options, token]() -> Outcome {
      try {
        return {meet(options, token), {}};
      } catch (const Error& error) {
        return {{}, std::string(name_of(error.code())) + ": " + error.what()};
      }
    });
  }
  MeetingNode(const MeetingNode&) = delete;
  MeetingNode& operator=(const MeetingNode&) = delete;

  Outcome outcome() { return outcome_.get(); }
  /// Where it has failed.
  std::string error() {
    Outcome outcome = outcome_.get();
    EXPECT_FALSE(outcome.met) << "met, where an error was expected";
    return outcome.error;
  }
  NodesMet met() {
    Outcome outcome = outcome_.get();
    EXPECT_EQ(outcome.error, "");
    EXPECT_TRUE(outcome.met);
    return outcome.met ? std::move(*outcome.met) : NodesMet{};
  }
  bool is_waiting() {
    return outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }
  const Lines& lines() const { return lines_; }

 private:
  Lines lines_;
  std::future<Outcome> outcome_;
};

/// A port of `address` that was free a moment ago.
inline std::uint16_t free_port(const std::string& address = "127.0.0.1") {
  const auto listener = listen_at({*parse_address(address), 0});
  EXPECT_TRUE(listener);
  return listener ? listener->at.port : std::uint16_t{1};
}

/// Of node `rank`, on the host "host<rank>", with limits for tests.
inline RendezvousOptions node_options(const std::string& place, std::optional<int> rank,
                                      int nodes) {
  RendezvousOptions options;
  const auto parsed = parse_rendezvous(place);
  EXPECT_TRUE(parsed) << place;
  options.place = *parsed;
  options.node_rank = rank;
  options.nodes = nodes;
  options.ranks = 2;
  options.host = rank ? "host" + std::to_string(*rank) : "unranked";
  options.version = "0.1.0";
  options.timeout = std::chrono::seconds(20);
  options.report_every = std::chrono::milliseconds(100);
  return options;
}

}  // namespace hora::launch::test
