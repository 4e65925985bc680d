#include "core/launch/control/sealed_frames.h"

#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using Bytes = std::vector<std::byte>;

Seal seal() {
  return {SecretKey(SecretKey::Bytes{}), Direction::client_to_server};
}

TEST(SealedFrames, AreReadOneAfterTheOther) {
  Seal send = seal(), receive = seal();
  SealedReader reader(receive, 100);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}}) {
    const Bytes payload(size, std::byte{5});
    const Bytes frame = sealed_frame(payload, send);
    std::span<const std::byte> rest = frame;
    ASSERT_EQ(reader.wants(), 4U);
    ASSERT_EQ(reader.take(rest.first(4)), std::nullopt);
    rest = rest.subspan(4);
    ASSERT_EQ(reader.wants(), rest.size());
    EXPECT_EQ(reader.take(rest), payload);
  }
}

TEST(SealedFrames, WrongLengthsAreRefused) {
  Seal receive = seal();
  SealedReader reader(receive, 100);
  EXPECT_FALSE(reader.take(Bytes(3)));
  EXPECT_FALSE(reader.take(Bytes{std::byte{101}, {}, {}, {}}));
  EXPECT_FALSE(reader.take(Bytes{{}, {}, {}, std::byte{255}}));
}

TEST(SealedFrames, ChangedOnesAreRefused) {
  Seal send = seal();
  const Bytes frame = sealed_frame(Bytes(10), send);
  for (std::size_t i = 4; i < frame.size(); ++i) {
    Seal receive = seal();
    SealedReader reader(receive, 100);
    Bytes changed = frame;
    changed[i] ^= std::byte{1};
    ASSERT_TRUE(reader.take(std::span(changed).first(4)));
    EXPECT_FALSE(reader.take(std::span(changed).subspan(4))) << i;
  }
}

}  // namespace
}  // namespace hora::launch
