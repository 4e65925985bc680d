// The texts that name the place of a rendezvous, its token and networks.
#include "core/launch/control/channel.h"
#include "core/launch/network/network.h"
#include "core/launch/options/hosts.h"
#include "tests/fuzz/require.h"

using namespace hora::launch;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto place = parse_rendezvous(text)) {
    HORA_REQUIRE(parse_rendezvous(to_url(*place)) == place);
  }
  static_cast<void>(token_from_text(text));
  static_cast<void>(parse_address(text));
  return 0;
}
