// The interfaces that horarun's launcher chooses for two emulated hosts (interface_choice.sh).
//
// Usage: two_hosts_interface_choice PID_A PID_B, processes in the hosts' network namespaces.
// Prints the launcher's line; exit code 0. The sockets of both hosts belong to this one process: a
// socket stays in the namespace in which it was made.
#include <fcntl.h>
#include <sched.h>

#include <cstdio>
#include <stdexcept>

#include "core/launch/network/choice.h"
#include "tests/core/launch/network/driven_probes.h"

namespace hora::launch {
namespace {

void enter(const std::string& pid) {
  const UniqueFd space(::open(("/proc/" + pid + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!space || ::setns(space.get(), CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot enter the network of process " + pid);
  }
}

int choose(const std::vector<std::string>& pids) {
  std::vector<HostNetwork> hosts;
  std::vector<std::unique_ptr<Probe>> probes;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    enter(pids[i]);
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
