// Input of a launcher, an agent or a guard from another process: bytes in pieces of any length,
// as frames, from a side without the token, and single messages. The first byte chooses which.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/control/system.h"
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

/// In pieces: what comes of a stream does not depend on where it was cut.
void as_frames(FuzzInput& input) {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  FrameReader reader;
  while (!input.empty()) {
    std::vector<std::byte> piece(1 + input.below(64));
    std::ranges::generate(piece, [&] { return input.take<std::byte>(); });
    HORA_REQUIRE(::write(pipe.write.get(), piece.data(), piece.size()) ==
                 static_cast<ssize_t>(piece.size()));
    while (true) {
      const auto payload = reader.read(pipe.read.get());
      if (!has_value_or_reason(payload)) return;
      if (!*payload) break;
      const auto message = decode(**payload);
      if (message) expect_whole(*message);
    }
  }
}

/// To a side that does not know the other yet, which has no token.
void as_stranger(std::span<const std::byte> bytes, bool connects) {
  int ends[2];
  HORA_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd stranger(ends[0]);
  const SecretKey token(new KeyBytes{1});
  EventLoop loop;
  loop.each(std::chrono::milliseconds(0), [&] { loop.stop(); });
  Channel channel(
      loop, connection_of(UniqueFd(ends[1])), token, connects,
      [](Message&&) { HORA_REQUIRE(false && "a message of a stranger was read"); },
      [](const std::string&) {});
  static_cast<void>(
      ::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  loop.run();
  HORA_REQUIRE(!channel.authenticated());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  FuzzInput input(data + 1, size - 1);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const int kind = data[0] % 4;
  if (kind == 0) {
    as_frames(input);
  } else if (kind < 3) {
    as_stranger(bytes, kind == 1);
  } else {
    // FlatBuffers wants its own alignment.
    const auto message = decode(Bytes(bytes.begin(), bytes.end()));
    if (has_value_or_reason(message)) expect_whole(*message);
  }
  return 0;
}
