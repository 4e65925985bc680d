#include "core/launch/network/agent_network.h"

#include <poll.h>

#include <utility>

#include "core/launch/network/told_network.h"

namespace hora::launch {

AgentNetwork::AgentNetwork(EventLoop& loop, std::function<void(const Message&)> send)
    : loop_(loop), send_(std::move(send)) {}

AgentNetwork::~AgentNetwork() {
  forget();
}

void AgentNetwork::forget() {
  if (!probe_) return;
  for (const int descriptor : probe_->fds()) loop_.forget(descriptor);
  probe_.reset();
}

void AgentNetwork::on(const TellNetwork& request) {
  const auto nonce = nonce_of(request);
  if (!nonce) return;
  forget();
  const HostNetwork network{{}, this_network_stack(), this_host_interfaces()};
  std::vector<IpAddress> addresses;
  for (const Candidate& candidate : candidates_of(network)) addresses.push_back(candidate.address);
  probe_.emplace(request.host, *nonce, addresses);
  answered_ = false;
  send_(to_message(network, probe_->endpoints()));
}

void AgentNetwork::on(const TryNetwork& request) {
  auto peers = from_message(request);
  if (!probe_ || !peers) return;
  if (peers->empty()) return forget();
  if (!probe_->fds().empty() || answered_) return;  // it has been started
  probe_->start(std::move(*peers), Clock::now());
  for (const int descriptor : probe_->fds()) {
    loop_.watch(descriptor, POLLIN, [this, descriptor](short) {
      probe_->on_readable(descriptor, Clock::now());
      answer_if_done();
    });
  }
  answer_if_done();
}

void AgentNetwork::on_time(Clock::time_point now) {
  if (!probe_) return;
  if (probe_->next_timer() && now >= *probe_->next_timer()) probe_->on_timer(now);
  answer_if_done();
}

void AgentNetwork::answer_if_done() {
  if (answered_ || !probe_->done()) return;
  answered_ = true;
  send_(to_message(probe_->result()));
}

}  // namespace hora::launch
