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
      if (done_() || Clock::now() > end_of_wait_) loop_.stop();
    });
  }

  std::unique_ptr<Channel> make(UniqueFd socket, std::vector<Message>& received, std::string& end,
                                std::optional<SealPair> seals = std::nullopt) {
    Connection connection = connection_of(std::move(socket));
    connection.seals = std::move(seals);
    return std::make_unique<Channel>(
        loop_, std::move(connection),
        [&](Message&& message) { received.push_back(std::move(message)); },
        [&](const std::string& reason) { end = reason; });
  }

  /// How many turns that takes is the kernel's to decide: it fills buffers as its memory allows.
  void turn_until(std::function<bool()> done) {
    done_ = std::move(done);
    end_of_wait_ = Clock::now() + std::chrono::seconds(20);
    loop_.run();
  }

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

/// Seals of one end of a connection.
SealPair seals(int send, int receive) {
  const auto seal = [](int key) { return Seal(SecretKey::Material{static_cast<std::byte>(key)}); };
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

/// Two ends that know each other by their tokens alone.
class UnknownSideTest : public SealedChannelTest {
 protected:
  void connect_by(const SecretKey& here, const SecretKey& there) {
    here_ = make_unknown(here, true, received_here_, end_here_);
    there_ = make_unknown(there, false, received_there_, end_there_);
  }
  std::unique_ptr<Channel> make_unknown(const SecretKey& token, bool connects,
                                        std::vector<Message>& received, std::string& end) {
    if (connects) {
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    }
    return std::make_unique<Channel>(
        loop_, connection_of(UniqueFd(ends_[connects ? 0 : 1])), token, connects, 1000,
        [&](Message&& message) { received.push_back(std::move(message)); },
        [&](const std::string& reason) { end = reason; });
  }

  int ends_[2] = {};
  SecretKey key_ = *token_from_text("a token of this test"),
            other_ = *token_from_text("a token of another job");
};

TEST_F(UnknownSideTest, ProvesItsTokenBeforeAnythingElse) {
  connect_by(key_, key_);
  EXPECT_FALSE(here_->authenticated());
  turn_until([this] { return received_here_.size() == 1 && received_there_.size() == 1; });
  EXPECT_TRUE(here_->authenticated() && there_->authenticated());
  there_->send(Hello{});
  turn_until([this] { return received_here_.size() == 2; });
  // The connection goes on in other channels.
  here_->send(EndAll{});
  ASSERT_TRUE(here_->flush(std::chrono::seconds(5)));
  Connection here = here_->release(), there = there_->release();
  here_ = std::make_unique<Channel>(
      loop_, std::move(here), [](Message&&) {}, [](const std::string&) {});
  there_ = std::make_unique<Channel>(
      loop_, std::move(there),
      [this](Message&& message) { received_there_.push_back(std::move(message)); },
      [](const std::string&) {});
  here_->send(Hello{});
  turn_until([this] { return received_there_.size() == 3; });
  EXPECT_TRUE(std::holds_alternative<EndAll>(received_there_.at(1)));
  EXPECT_TRUE(std::holds_alternative<Hello>(received_there_.at(2)));
}

TEST_F(UnknownSideTest, AnotherTokenIsRefusedOnBothSides) {
  connect_by(key_, other_);
  turn_until([this] { return !end_here_.empty() && !end_there_.empty(); });
  EXPECT_THAT(end_here_, HasSubstr("another token"));
  EXPECT_THAT(end_there_, HasSubstr("another token"));
  EXPECT_TRUE(here_->refused() && there_->refused());
  EXPECT_FALSE(here_->authenticated() || there_->authenticated());
  EXPECT_TRUE(received_here_.empty() && received_there_.empty());
}

TEST_F(UnknownSideTest, LongMessagesAreRefused) {
  connect_by(key_, key_);
  turn_until([this] { return received_here_.size() == 1; });
  RankOutput message;
  message.bytes.assign(2000, 1);
  here_->send(message);
  turn_until([this] { return !end_there_.empty(); });
  EXPECT_THAT(end_there_, HasSubstr("the most is"));
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

/// Opens the pipe of this address.
tl::expected<ReportPipe, std::string> open_at(const std::string& address) {
  ::setenv(kAgentVariable, address.c_str(), 1);
  auto pipe = open_report_pipe();
  ::unsetenv(kAgentVariable);
  return pipe;
}

TEST(ReportPipe, IsOpenedByItsAddress) {
  const Pipe pipe = make_pipe();
  const auto opened = open_at(address_of(pipe.write));
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ(opened->agent, ::getpid());
  EXPECT_TRUE(send_report(opened->pipe, Heartbeat{}));
  const auto payload = FrameReader().read(pipe.read.get());
  ASSERT_TRUE(payload && *payload);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(decode(**payload).value()));
}

TEST(ReportPipe, OtherAddressesAreRefused) {
  const Pipe pipe = make_pipe();
  const std::string address = address_of(pipe.write);
  EXPECT_THAT(open_at(address + "1").error(), HasSubstr("is not the agent"));
  EXPECT_THAT(open_at("1:1000000:3").error(), HasSubstr("cannot be reached"));
  for (const char* text : {"", "1", "1:2", "1:2:", "1:2:3:", "a:2:3", "1:-2:3", "1:2:3 "}) {
    EXPECT_THAT(open_at(text).error(), HasSubstr("below horarun alone")) << text;
  }
  EXPECT_FALSE(open_report_pipe());
}

TEST(ReportPipe, ALongerReportIsRefused) {
  const Pipe pipe = make_pipe();
  RankOutput message;
  message.bytes.assign(5000, 1);
  EXPECT_THROW(send_report(pipe.write, message), std::length_error);
}

}  // namespace
}  // namespace hora::launch
