// The interfaces that horarun's launcher chooses for two emulated hosts (interface_choice.sh).
//
// Usage: two_hosts_interface_choice PID_A PID_B, processes in the hosts' network namespaces.
// Prints the launcher's line; exit code 0. The sockets of both hosts belong to this one process: a
// socket stays in the namespace in which it was made.
#include <cstdio>
#include <stdexcept>

#include "tests/core/launch/network/trial_of_agents.h"
#include "tests/two_hosts/network_namespace.h"

namespace hora::launch {
namespace {

int choose(const std::vector<std::string>& pids) {
  std::vector<std::function<void()>> enter;
  for (const std::string& pid : pids) enter.emplace_back([pid] { test::enter_network_of(pid); });
  const auto start = Clock::now();
  const auto choice = test::try_networks(enter, [](const NetworkTold& told, std::size_t host) {
    const auto network = from_message(told, host == 0 ? "a" : "b");
    if (!network) throw std::runtime_error(network.error());
    std::printf("%s: %s\n", network->host.c_str(), describe(network->addresses).c_str());
  });
  const std::chrono::duration<double> seconds = Clock::now() - start;
  if (!choice) throw std::runtime_error(choice.error());
  std::printf("%s\ntried for %.2f s\n", choice->line.c_str(), seconds.count());
  if (choice->warning) std::printf("warning: %s\n", choice->warning->c_str());
  return seconds.count() < 1.5 ? 0 : 1;
}

}  // namespace
}  // namespace hora::launch

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "Usage: two_hosts_interface_choice PID_A PID_B\n");
    return 2;
  }
  try {
    return hora::launch::choose({arguments[1], arguments[2]});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
