// Launchers of two emulated hosts (interface_choice.sh), whose networks two processes hold. A
// socket stays in the network in which it was made, so those of both hosts belong to this one
// process.
//
// Usage: two_hosts_launchers PID_A PID_B         the interfaces that they choose, and its line
//        two_hosts_launchers PID_A PID_B FOLDER  they meet: at node 0's address, and in the folder
// Exit code: 0 where they do.
#include <fcntl.h>
#include <hora/error.h>
#include <sched.h>

#include <cstdio>
#include <future>
#include <stdexcept>

#include "core/launch/control/system.h"
#include "core/launch/rendezvous/rendezvous.h"
#include "tests/core/launch/network/trial_of_agents.h"

namespace hora::launch {
namespace {

/// The calling thread is in the network of that process from now on. Throws std::runtime_error.
void enter_network_of(const std::string& process) {
  const UniqueFd space(::open(("/proc/" + process + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!space || ::setns(space.get(), CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot enter the network of process " + process);
  }
}

int choose(const std::vector<std::string>& pids) {
  std::vector<std::function<void()>> enter;
  for (const std::string& pid : pids) enter.emplace_back([pid] { enter_network_of(pid); });
  const auto start = Clock::now();
  const auto choice = test::try_networks(enter, [](const NetworkTold& told, std::size_t host) {
    const auto network = from_message(told, host == 0 ? "a" : "b");
    std::printf("%s: %s\n", network.host.c_str(), describe(network.addresses).c_str());
  });
  const std::chrono::duration<double> seconds = Clock::now() - start;
  if (!choice) throw std::runtime_error(choice.error());
  std::printf("%s\ntried for %.2f s\n", choice->line.c_str(), seconds.count());
  if (choice->warning) std::printf("warning: %s\n", choice->warning->c_str());
  return seconds.count() < 1.5 ? 0 : 1;
}

NodesMet meet_from(const std::string& pid, int node_rank, const std::string& place) {
  enter_network_of(pid);
  RendezvousOptions options;
  options.place = parse_rendezvous(place).value();
  options.nodes = 2;
  options.node_rank = node_rank;
  options.host = node_rank == 0 ? "host-a" : "host-b";
  options.timeout = std::chrono::seconds(20);
  options.say = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  return meet(options, *token_from_text("a token of this test"));
}

void meet_at(const std::string& place, const std::string& pid_a, const std::string& pid_b) {
  const auto node1 = std::async(std::launch::async, meet_from, pid_b, 1, place);
  auto node0 = std::async(std::launch::async, meet_from, pid_a, 0, place);
  node1.wait();
  const NodesMet met = node0.get();
  std::printf("met at %s: host-b is %s\n", place.c_str(), met.nodes.at(1).address.c_str());
  if (met.nodes.at(1).address != "10.77.0.2") throw std::runtime_error("over another network");
}

}  // namespace
}  // namespace hora::launch

int main(int count, char** arguments) {
  try {
    if (count == 3) return hora::launch::choose({arguments[1], arguments[2]});
    if (count != 4) throw std::runtime_error("Usage: two_hosts_launchers PID_A PID_B [FOLDER]");
    hora::launch::meet_at("tcp://10.77.0.1:29500", arguments[1], arguments[2]);
    hora::launch::meet_at("file://" + std::string(arguments[3]), arguments[1], arguments[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
