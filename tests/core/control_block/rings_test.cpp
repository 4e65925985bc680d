#include "core/control_block/rings.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

template <std::size_t capacity>
struct Ring {
  SequenceRingHead head{};
  std::array<SequenceRingEntry, capacity> entries{};
  SequenceRing ring{&head, entries.data(), capacity};
};

TEST(SequenceRing, ManyWritersOneOrderForAllReaders) {
  constexpr std::uint64_t kWriters = 3;
  constexpr std::uint64_t kEach = 3000;
  const auto memory = std::make_unique<Ring<kWriters * kEach>>();
  std::vector<std::vector<std::uint64_t>> read(2);
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
      threads.emplace_back([&, writer] {
        for (std::uint64_t n = 0; n < kEach; ++n) {
          memory->ring.publish(memory->ring.take_ticket(), 0, writer * kEach + n, 0, 0);
        }
      });
    }
    for (auto& own : read) {
      threads.emplace_back([&] {
        for (std::uint64_t t = 0; t < kWriters * kEach;) {
          const SequenceRingEntry* entry = memory->ring.find(t);
          if (!entry) {
            std::this_thread::yield();
            continue;
          }
          own.push_back(entry->value);
          ++t;
        }
      });
    }
  }
  EXPECT_EQ(read[0], read[1]);
  std::vector<std::uint64_t> next(kWriters, 0);
  for (const std::uint64_t value : read[0]) {
    EXPECT_EQ(value % kEach, next[value / kEach]++) << "a writer's own order is kept";
  }
}

using Bytes = std::vector<std::byte>;

Bytes message_of(std::size_t length, std::uint64_t number) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(number * 31 + i);
  return bytes;
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
