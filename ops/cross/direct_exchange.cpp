#include "ops/cross/direct_exchange.h"

namespace hora {
namespace {

constexpr int kExchange = 0;

}  // namespace

DirectExchange::DirectExchange(CrossResources& resources,
                               std::span<const std::span<const std::byte>> sends,
                               std::span<const std::span<std::byte>> receives,
                               std::uint64_t sequence)
    : CrossWork(resources, sequence) {
  const int me = link().index();
  const int members = link().size();
  for (int k = 1; k < members; ++k) {
    const int from = (me + members - k) % members;  // first who begins with this member
    receive(workspace().receives, from, kExchange, receives[static_cast<std::size_t>(from)]);
  }
  for (int k = 1; k < members; ++k) {
    const int to = (me + k) % members;
    send(workspace().sends, to, kExchange, sends[static_cast<std::size_t>(to)]);
  }
}

bool DirectExchange::poll() {
  return workspace().receives.drained(link()) && workspace().sends.drained(link()) && finish();
}

}  // namespace hora
