/// An agent's part in the choice of interfaces: tells this host's, and tries them.
#pragma once

#include <functional>
#include <optional>

#include "core/launch/control/event_loop.h"
#include "core/launch/control/messages.h"
#include "core/launch/network/probe.h"

namespace hora::launch {

/// Thread rule: one thread, that of the loop.
class AgentNetwork {
 public:
  /// `send` takes the answers. The loop outlives it.
  AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send);
  ~AgentNetwork();
  AgentNetwork(const AgentNetwork&) = delete;
  AgentNetwork& operator=(const AgentNetwork&) = delete;

  /// Messages that are none of a launcher are ignored.
  void on(const TellNetwork& request);
  void on(const TryNetwork& request);
  /// Called at least ten times a second.
  void on_time(Clock::time_point now);

 private:
  void forget();
  void answer_if_done();

  EventLoop& loop_;
  std::function<void(const Message&)> send_;
  std::optional<Probe> probe_;
  bool answered_ = false;
};

}  // namespace hora::launch
