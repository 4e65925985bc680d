// What a launcher, an agent or a guard may get from another process: bytes in pieces of any length,
// as frames, bare and sealed, and single messages. The first byte chooses which.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/launch/control/messages.h"
#include "core/launch/control/seal.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora::launch;
using hora::internal::test::FuzzInput;

/// A message that was read means the same when it is written again.
void expect_whole(const Message& message) {
  const auto bytes = encode(message);
  const auto again = decode(bytes);
  HORA_REQUIRE(again.has_value() && again->index() == message.index());
  HORA_REQUIRE(encode(*again) == bytes);
}

/// All messages of `reader`, up to the first that is none.
bool read_all(FrameReader& reader) {
  for (;;) {
    const auto message = reader.next();
    if (!message) {
      HORA_REQUIRE(!message.error().empty());
      return false;
    }
    if (!*message) return true;
    expect_whole(**message);
  }
}

/// In pieces: what comes of a stream does not depend on where it was cut.
void as_frames(FuzzInput& input, FrameReader reader) {
  while (!input.empty()) {
    std::vector<std::byte> piece(1 + input.below(64));
    std::ranges::generate(piece, [&] { return input.take<std::byte>(); });
    reader.append(piece);
    if (!read_all(reader)) return;
  }
}

void as_message(std::span<const std::byte> bytes) {
  const auto message = decode(bytes);
  if (message) {
    expect_whole(*message);
  } else {
    HORA_REQUIRE(!message.error().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  FuzzInput input(data + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      as_frames(input, FrameReader());
      break;
    case 1:
      as_frames(input, FrameReader(Seal(SecretKey::Bytes{std::byte{1}})));
      break;
    default:
      // FlatBuffers wants its own alignment.
      const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
      as_message(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  return 0;
}
