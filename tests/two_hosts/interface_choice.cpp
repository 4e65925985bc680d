// The interfaces that horarun's launcher chooses for two emulated hosts (interface_choice.sh).
//
// Usage: two_hosts_interface_choice PID_A PID_B, processes in the hosts' network namespaces.
// Prints the launcher's line; exit code 0. The sockets of both hosts belong to this one process: a
// socket stays in the namespace in which it was made.
#include <cstdio>

#include "core/launch/network/choice.h"
#include "tests/core/launch/network/driven_probes.h"
#include "tests/two_hosts/network_namespace.h"

namespace hora::launch {
namespace {

int choose(const std::vector<std::string>& pids) {
  std::vector<HostNetwork> hosts;
  std::vector<std::unique_ptr<Probe>> probes;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    test::enter_network_of(pids[i]);
    hosts.push_back({i == 0 ? "a" : "b", this_network_stack(), this_host_interfaces()});
    std::printf("%s: %s\n", hosts[i].host.c_str(), describe(hosts[i].interfaces).c_str());
    std::vector<IpAddress> addresses;
    for (const Candidate& candidate : candidates_of(hosts[i])) {
      addresses.push_back(candidate.address);
    }
    probes.push_back(std::make_unique<Probe>(i, ProbeNonce{std::byte{1}}, addresses));
  }
  const auto start = Probe::Clock::now();
  const auto results = test::run(probes);
  const std::chrono::duration<double> seconds = Probe::Clock::now() - start;
  const NetworkChoice choice = choose_network(hosts, merge(results, hosts));
  std::printf("%s\ntried for %.2f s\n", choice.line.c_str(), seconds.count());
  if (choice.warning) std::printf("warning: %s\n", choice.warning->c_str());
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
