// Any bytes as a message from a peer: refused with a reason, or a message within the limits that
// means the same when it is encoded again.
#include "core/messages/messages.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hora;
  using namespace hora::internal;
  static const MessageLimits limits{.id_capacity = 64, .ranks = {0, 1, 2, 5}, .locations = 0};
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto message = decode(bytes);
  if (!has_value_or_reason(message)) return 0;
  const auto again = decode(encode(*message));
  HORA_REQUIRE(again.has_value() && *again == *message);
  const auto checked = decode(bytes, &limits);
  if (has_value_or_reason(checked)) HORA_REQUIRE(*checked == *message);
  return 0;
}
