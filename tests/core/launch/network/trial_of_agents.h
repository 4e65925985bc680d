/// A launcher and the agents of several hosts, which try their networks, in one thread.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "core/launch/network/network.h"

namespace hora::launch::test {

/// `enter`: called before an agent makes its sockets, by host; `change`: what it tells.
inline tl::expected<NetworkChoice, std::string> try_networks(
    const std::vector<std::function<void()>>& enter,
    const std::function<void(NetworkTold&, std::size_t)>& change) {
  EventLoop loop;
  std::vector<std::pair<std::size_t, Message>> answers;
  std::vector<std::string> names;
  std::list<AgentNetwork> agents;
  for (std::size_t i = 0; i < enter.size(); ++i) {
    names.push_back(std::string(1, static_cast<char>('a' + i)));
    agents.emplace_back(loop, [&, i](const Message& message) { answers.emplace_back(i, message); });
  }
  NetworkTrial launcher(names, {}, 5);
  const auto give = [&](const NetworkTrial::Messages& messages) {
    for (const auto& [to, message] : messages) {
      AgentNetwork& agent = *std::next(agents.begin(), static_cast<std::ptrdiff_t>(to));
      enter[to]();
      if (const auto* tell = std::get_if<TellNetwork>(&message)) agent.on(*tell);
      if (const auto* attempt = std::get_if<TryNetwork>(&message)) agent.on(*attempt);
    }
  };
  const auto end = Clock::now() + std::chrono::seconds(20);
  loop.each(std::chrono::milliseconds(20), [&] {
    for (AgentNetwork& agent : agents) agent.on_time(Clock::now());
    for (auto& [from, message] : std::exchange(answers, {})) {
      if (auto* told = std::get_if<NetworkTold>(&message)) {
        change(*told, from);
        give(launcher.on(from, *told));
      }
      if (const auto* tried = std::get_if<NetworkTried>(&message)) give(launcher.on(from, *tried));
    }
    if (launcher.result() || Clock::now() > end) loop.stop();
  });
  give(launcher.start());
  loop.run();
  if (!launcher.result()) return tl::unexpected<std::string>("the trial did not end");
  return *launcher.result();
}

}  // namespace hora::launch::test
