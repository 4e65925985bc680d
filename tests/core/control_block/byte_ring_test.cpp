#include "core/control_block/byte_ring.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <cstring>
#include <deque>
#include <thread>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using Bytes = std::vector<std::byte>;

Bytes message_of(std::size_t length, std::uint64_t number) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(number * 31 + i);
  return bytes;
}

TEST(ByteRing, WritesAcrossItsEnd) {
  Bytes memory(10);
  ByteRing ring(memory.data(), memory.size());
  ring.write(7, message_of(6, 1));
  EXPECT_EQ(ring.read(7, 6), message_of(6, 1));
  EXPECT_EQ(memory[9], message_of(6, 1)[2]);
  EXPECT_EQ(memory[0], message_of(6, 1)[3]);
  EXPECT_TRUE(ring.read(3, 0).empty());
}

TEST(ByteRing, FitsUpToItsCapacityAndNotBeyond) {
  Bytes memory(10);
  const ByteRing ring(memory.data(), memory.size());
  EXPECT_TRUE(ring.fits(0, 0, 10));
  EXPECT_FALSE(ring.fits(0, 0, 11));
  EXPECT_TRUE(ring.fits(1004, 1000, 6));
  EXPECT_FALSE(ring.fits(1004, 1000, 7));
}

TEST(Mailbox, RandomTrafficAgainstAQueue) {
  auto random = test::generator();
  for (const std::size_t capacity : {4u, 5u, 37u, 256u}) {
    MailboxHead head{};
    Bytes memory(capacity);
    Mailbox mailbox(&head, memory.data(), capacity);
    std::deque<Bytes> model;
    std::size_t used = 0;
    for (std::uint64_t n = 0; n < 20000; ++n) {
      if (random() % 2 == 0) {
        const Bytes message = message_of(random() % (capacity + 3), n);
        const bool room = used + 4 + message.size() <= capacity;
        ASSERT_EQ(mailbox.try_push(message), room);
        if (!room) continue;
        model.push_back(message);
        used += 4 + message.size();
      } else {
        ASSERT_EQ(mailbox.empty(), model.empty());
        const auto message = mailbox.pop();
        ASSERT_EQ(message.has_value(), !model.empty());
        if (!message) continue;
        ASSERT_EQ(*message, model.front());
        used -= 4 + model.front().size();
        model.pop_front();
      }
    }
  }
}

TEST(Mailbox, LengthsThatCannotBeAreAnError) {
  for (const std::uint32_t length : {21u, 64u, 200u, ~0u}) {
    MailboxHead head{};
    Bytes memory(64);
    Mailbox mailbox(&head, memory.data(), memory.size());
    ASSERT_TRUE(mailbox.try_push(message_of(8, 1)));
    ASSERT_TRUE(mailbox.try_push(message_of(8, 2)));
    std::memcpy(memory.data(), &length, sizeof length);
    EXPECT_THROW(mailbox.pop(), Error) << length;
  }
}

TEST(Mailbox, APositionThatCannotBeIsAnError) {
  for (const std::uint64_t written : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{65},
                                      std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    MailboxHead head{};
    Bytes memory(64, std::byte{255});
    Mailbox mailbox(&head, memory.data(), memory.size());
    head.written.store(written);
    EXPECT_THROW(mailbox.pop(), Error) << written;
  }
}

TEST(ByteRing, NothingLongerThanTheRingIsReadOrWritten) {
  Bytes memory(64);
  const ByteRing ring(memory.data(), memory.size());
  EXPECT_EQ(ring.read(60, 64).size(), 64u);
  EXPECT_THROW(ring.read(0, 65), Error);
  EXPECT_FALSE(ring.fits(10, 74, 65)) << "a reader's position that is ahead";
}

TEST(Mailbox, OneWriterAndOneReaderAtATime) {
  MailboxHead head{};
  Bytes memory(101);
  Mailbox mailbox(&head, memory.data(), memory.size());
  constexpr std::uint64_t kMessages = 20000;
  const std::jthread writer([&] {
    for (std::uint64_t n = 0; n < kMessages; ++n) {
      while (!mailbox.try_push(message_of(n % 40, n))) std::this_thread::yield();
    }
  });
  for (std::uint64_t n = 0; n < kMessages;) {
    const auto message = mailbox.pop();
    if (!message) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(*message, message_of(n % 40, n));
    ++n;
  }
}

}  // namespace
}  // namespace hora::internal
