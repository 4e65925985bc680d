// Any host list, and any hostfile: refused with a reason, or hosts whose names are safe to hand to
// ssh, within the limits, onto which ranks can be laid.
#include "core/launch/options/hosts.h"
#include "core/launch/text.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora::launch;

void require_sound(const std::vector<HostSlots>& hosts) {
  long long total = 0;
  std::string list;
  for (const HostSlots& host : hosts) {
    HORA_REQUIRE(is_host_name(host.name));
    HORA_REQUIRE(host.slots >= 1 && host.slots <= kMostRanks);
    total += host.slots;
    const bool is_address = host.name.find(':') != std::string::npos;
    list += (list.empty() ? "" : ",") + (is_address ? "[" + host.name + "]" : host.name) + ":" +
            std::to_string(host.slots);
  }
  HORA_REQUIRE(total >= 1 && total <= kMostRanks && total == total_slots(hosts));

  const auto again = parse_host_list(list);
  HORA_REQUIRE(again && again->size() == hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    HORA_REQUIRE((*again)[i].name == hosts[i].name && (*again)[i].slots == hosts[i].slots);
  }

  const int np = static_cast<int>(total);
  for (const int ranks : {1, np, np + 7}) {
    for (const bool oversubscribe : {false, true}) {
      const auto layout = lay_out_ranks(hosts, ranks, oversubscribe);
      HORA_REQUIRE(layout || ranks > np);
      int next = 0;
      for (const HostRanks& part : layout.value_or(std::vector<HostRanks>())) {
        HORA_REQUIRE(part.first == next && part.ranks > 0);
        next += part.ranks;
      }
      HORA_REQUIRE(!layout || next == ranks);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  for (const auto& hosts : {parse_host_list(text), parse_hostfile(text, "hosts")}) {
    if (has_value_or_reason(hosts)) require_sound(*hosts);
  }
  return 0;
}
