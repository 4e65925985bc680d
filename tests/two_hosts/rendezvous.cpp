// The launchers of two emulated hosts meet over their link (interface_choice.sh): at node 0's
// address, and in a folder that both share.
//
// Usage: two_hosts_rendezvous PID_A PID_B FOLDER. Exit code 0 where they meet both times.
#include "core/launch/rendezvous/rendezvous.h"

#include <hora/error.h>

#include <cstdio>
#include <future>
#include <stdexcept>

#include "tests/two_hosts/network_namespace.h"

namespace hora::launch {
namespace {

NodesMet meet_from(const std::string& pid, int node_rank, const std::string& place) {
  test::enter_network_of(pid);
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
  if (count != 4) {
    std::fprintf(stderr, "Usage: two_hosts_rendezvous PID_A PID_B FOLDER\n");
    return 2;
  }
  try {
    using hora::launch::meet_at;
    meet_at("tcp://10.77.0.1:29500", arguments[1], arguments[2]);
    meet_at("file://" + std::string(arguments[3]), arguments[1], arguments[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
