#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

using testing::HasSubstr;

class ChannelTest : public testing::Test {
 protected:
  ChannelTest() {
    ::signal(SIGPIPE, SIG_IGN);
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here_ = make(UniqueFd(ends[0]), received_here_, end_here_);
    there_ = make(UniqueFd(ends[1]), received_there_, end_there_);
    loop_.each(std::chrono::milliseconds(10), [this] {
      if (--turns_ <= 0 && (done_() || Clock::now() > end_of_wait_)) loop_.stop();
    });
  }

  std::unique_ptr<Channel> make(UniqueFd in, std::vector<Message>& received, std::string& end,
                                std::optional<SealPair> seals = std::nullopt) {
    UniqueFd out(::fcntl(in.get(), F_DUPFD_CLOEXEC, 3));
    return std::make_unique<Channel>(
        loop_, std::move(in), std::move(out),
        [&](Message&& message) { received.push_back(std::move(message)); },
        [&](const std::string& reason) { end = reason; }, std::move(seals));
  }

  /// So many turns, within which nothing more may come.
  void turn(int turns = 20) {
    turns_ = turns;
    done_ = [] { return true; };
    loop_.run();
  }
  /// How many turns that takes is the kernel's to decide: it fills buffers as its memory allows.
  void turn_until(std::function<bool()> done) {
    turns_ = 0;
    done_ = std::move(done);
    end_of_wait_ = Clock::now() + std::chrono::seconds(20);
    loop_.run();
  }

  int turns_ = 0;
  std::function<bool()> done_;
  Clock::time_point end_of_wait_;
  EventLoop loop_;
  std::vector<Message> received_here_, received_there_;
  std::string end_here_, end_there_;
  std::unique_ptr<Channel> here_, there_;
};

TEST_F(ChannelTest, CarriesMessagesBothWays) {
  here_->send(Heartbeat{});
  there_->send(EndAll{});
  there_->send(Hello{});
  turn_until([this] { return received_there_.size() == 1 && received_here_.size() == 2; });
  ASSERT_EQ(received_there_.size(), 1U);
  ASSERT_EQ(received_here_.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(received_there_[0]));
  EXPECT_TRUE(std::holds_alternative<EndAll>(received_here_[0]));
  EXPECT_TRUE(std::holds_alternative<Hello>(received_here_[1]));
}

TEST(EventLoop, AStopBeforeItRunsHoldsOnce) {
  EventLoop loop;
  int turns = 0;
  loop.each(std::chrono::milliseconds(1), [&] {
    ++turns;
    loop.stop();
  });
  loop.stop();
  loop.run();
  EXPECT_EQ(turns, 0);
  loop.run();
  EXPECT_EQ(turns, 1);
}

/// Of one end of a sealed connection.
SealPair seals(int send, int receive) {
  const auto seal = [](int key) { return Seal(SecretKey::Bytes{static_cast<std::byte>(key)}); };
  return {seal(send), seal(receive)};
}

class SealedChannelTest : public ChannelTest {
 protected:
  /// In place of those without seals.
  void connect(std::optional<SealPair> here, std::optional<SealPair> there) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here_ = make(UniqueFd(ends[0]), received_here_, end_here_, std::move(here));
    there_ = make(UniqueFd(ends[1]), received_there_, end_there_, std::move(there));
  }
};

TEST_F(SealedChannelTest, CarriesSealedMessages) {
  connect(seals(1, 2), seals(2, 1));
  for (int i = 0; i < 5; ++i) {
    here_->send(Heartbeat{});
    there_->send(Hello{});
  }
  turn_until([this] { return received_there_.size() == 5 && received_here_.size() == 5; });
  EXPECT_EQ(received_there_.size(), 5U);
  EXPECT_EQ(received_here_.size(), 5U);
}

TEST_F(SealedChannelTest, AMessageWithoutTheRightSealEndsIt) {
  connect(seals(1, 2), seals(2, 3));
  here_->send(Heartbeat{});
  turn_until([this] { return !end_there_.empty(); });
  EXPECT_TRUE(received_there_.empty());
  EXPECT_THAT(end_there_, testing::HasSubstr("without the right seal"));
  end_there_.clear();
  connect(std::nullopt, seals(2, 1));
  for (int i = 0; i < 10; ++i) here_->send(Heartbeat{});
  turn_until([this] { return !end_there_.empty(); });
  EXPECT_TRUE(received_there_.empty());
  EXPECT_THAT(end_there_, testing::HasSubstr("without the right seal"));
}

TEST_F(ChannelTest, WhatTheOtherSideDoesNotTakeIsQueuedAndComesInOrder) {
  constexpr int kMessages = 200;
  for (int i = 0; i < kMessages; ++i) {
    RankOutput message;
    message.rank = i;
    message.bytes.assign(10000, 1);
    here_->send(message);
  }
  EXPECT_GT(here_->queued(), 0U);
  turn_until([this] { return received_there_.size() == std::size_t{kMessages}; });
  EXPECT_EQ(here_->queued(), 0U);
  ASSERT_EQ(received_there_.size(), static_cast<std::size_t>(kMessages));
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(std::get<RankOutput>(received_there_[static_cast<std::size_t>(i)]).rank, i);
  }
}

TEST_F(ChannelTest, TheEndComesOnceAfterAllMessages) {
  here_->send(Heartbeat{});
  here_.reset();
  turn_until([this] { return !end_there_.empty(); });
  EXPECT_EQ(received_there_.size(), 1U);
  EXPECT_EQ(end_there_, "it has closed the connection");
  EXPECT_FALSE(there_->open());
  there_->send(Heartbeat{});  // into nothing
}

TEST_F(ChannelTest, WhatIsNoMessageEndsTheConnection) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd peer(ends[0]);
  std::vector<Message> received;
  std::string end;
  const auto channel = make(UniqueFd(ends[1]), received, end);
  ASSERT_EQ(::write(peer.get(), "\xff\xff\xff\x7f", 4), 4);
  turn_until([&] { return !end.empty(); });
  EXPECT_THAT(end, testing::HasSubstr("something else than messages"));
  EXPECT_TRUE(received.empty());
}

TEST_F(ChannelTest, APausedReceiverIsGivenNothing) {
  there_->pause(true);
  here_->send(Heartbeat{});
  turn();
  EXPECT_TRUE(received_there_.empty());
  there_->pause(false);
  turn_until([this] { return !received_there_.empty(); });
  EXPECT_EQ(received_there_.size(), 1U);
}

TEST(ReportPipe, AddressesComeBackAsTheyWere) {
  const auto address = parse_pipe_address(to_string(PipeAddress{12, 7, 3456}));
  ASSERT_TRUE(address);
  EXPECT_EQ(address->process, 12);
  EXPECT_EQ(address->descriptor, 7);
  EXPECT_EQ(address->inode, 3456U);
  for (const char* text : {"", "1", "1:2", "1:2:", "1:2:3:", "a:2:3", "1:-2:3", "1:2:3 "}) {
    EXPECT_FALSE(parse_pipe_address(text)) << text;
  }
}

TEST(ReportPipe, IsOpenedByItsAddress) {
  const Pipe pipe = make_pipe();
  const auto opened = open_report_pipe(address_of(pipe.write));
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_TRUE(send_report(*opened, Heartbeat{}));
  std::byte bytes[200];
  FrameReader reader;
  const ssize_t count = ::read(pipe.read.get(), bytes, sizeof bytes);
  ASSERT_GT(count, 0);
  reader.append(std::span(bytes).first(static_cast<std::size_t>(count)));
  const auto message = reader.next();
  ASSERT_TRUE(message && *message);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(**message));
}

TEST(ReportPipe, AnotherPipeOfThatNumberIsRefused) {
  const Pipe pipe = make_pipe();
  PipeAddress address = address_of(pipe.write);
  ++address.inode;
  const auto opened = open_report_pipe(address);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error(), HasSubstr("is not the agent"));
  address.descriptor = 1000000;
  const auto none = open_report_pipe(address);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error(), HasSubstr("cannot be reached"));
}

TEST(ReportPipe, ALongerReportIsRefused) {
  const Pipe pipe = make_pipe();
  RankOutput message;
  message.bytes.assign(5000, 1);
  EXPECT_THROW(send_report(pipe.write, message), std::length_error);
}

}  // namespace
}  // namespace hora::launch
