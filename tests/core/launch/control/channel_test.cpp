#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/launch/control/system.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

namespace fs = std::filesystem;
using internal::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Two ends of a connection in one process.
class ChannelTest : public testing::Test {
 protected:
  struct End {
    std::vector<Message> received;
    std::string reason;  ///< of its end
    std::unique_ptr<Channel> channel;
  };

  ChannelTest() {
    ::signal(SIGPIPE, SIG_IGN);
    loop_.each(std::chrono::milliseconds(10), [this] {
      if (done_() || Clock::now() > end_of_wait_) loop_.stop();
    });
    connect();
  }

  std::pair<UniqueFd, UniqueFd> sockets() const {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  template <class... Known>
  void make(End& end, Connection connection, Known&&... known) {
    end.channel.reset();
    end.channel = std::make_unique<Channel>(
        loop_, std::move(connection), std::forward<Known>(known)...,
        [&](Message&& message) { end.received.push_back(std::move(message)); },
        [&](const std::string& reason) { end.reason = reason; });
  }
  /// In place of the ends before.
  void connect(std::optional<SealPair> here = {}, std::optional<SealPair> there = {}) {
    auto [first, second] = sockets();
    Connection connection = connection_of(std::move(first)),
               other = connection_of(std::move(second));
    connection.seals = std::move(here), other.seals = std::move(there);
    make(here_, std::move(connection)), make(there_, std::move(other));
  }
  /// Ends that know each other by their tokens alone.
  void connect_by(const SecretKey& here, const SecretKey& there) {
    auto [first, second] = sockets();
    make(here_, connection_of(std::move(first)), here, true);
    make(there_, connection_of(std::move(second)), there, false);
  }

  /// How many turns that takes is the kernel's to decide: it fills buffers as its memory allows.
  void turn_until(std::function<bool()> done) {
    done_ = std::move(done);
    end_of_wait_ = Clock::now() + std::chrono::seconds(20);
    loop_.run();
  }
  void turn_until_received(std::size_t here, std::size_t there) {
    turn_until(
        [=, this] { return here_.received.size() >= here && there_.received.size() >= there; });
    EXPECT_EQ(here_.received.size(), here);
    EXPECT_EQ(there_.received.size(), there);
  }
  std::string reason_there() {
    turn_until([&] { return !there_.reason.empty(); });
    return there_.reason;
  }

  std::function<bool()> done_;
  Clock::time_point end_of_wait_;
  EventLoop loop_;
  End here_, there_;
};

/// Seals of one end of a connection.
SealPair seals(unsigned char send, unsigned char receive) {
  return {Seal(KeyBytes{send}), Seal(KeyBytes{receive})};
}

TEST_F(ChannelTest, CarriesMessagesBothWays) {
  for (const bool sealed : {false, true}) {
    if (sealed) connect(seals(1, 2), seals(2, 1));
    here_.received.clear(), there_.received.clear();
    here_.channel->send(Heartbeat{});
    there_.channel->send(EndAll{});
    there_.channel->send(Hello{});
    turn_until_received(2, 1);
    EXPECT_TRUE(std::holds_alternative<Heartbeat>(there_.received.at(0)));
    EXPECT_TRUE(std::holds_alternative<EndAll>(here_.received.at(0)));
    EXPECT_TRUE(std::holds_alternative<Hello>(here_.received.at(1)));
  }
}

class UnknownSideTest : public ChannelTest {
 protected:
  SecretKey key_ = *token_from_text("a token of this test"),
            other_ = *token_from_text("a token of another job");
};

TEST_F(UnknownSideTest, ProvesItsTokenBeforeAnythingElse) {
  connect_by(key_, key_);
  EXPECT_FALSE(here_.channel->authenticated());
  turn_until_received(1, 1);
  EXPECT_TRUE(here_.channel->authenticated() && there_.channel->authenticated());
  there_.channel->send(Hello{});
  turn_until_received(2, 1);
  // The connection goes on in other channels.
  here_.channel->send(EndAll{});
  ASSERT_TRUE(here_.channel->flush(std::chrono::seconds(5)));
  Connection here = here_.channel->release(), there = there_.channel->release();
  make(here_, std::move(here)), make(there_, std::move(there));
  here_.channel->send(Hello{});
  turn_until_received(2, 3);
  EXPECT_TRUE(std::holds_alternative<EndAll>(there_.received.at(1)));
  EXPECT_TRUE(std::holds_alternative<Hello>(there_.received.at(2)));
}

TEST_F(UnknownSideTest, AnotherTokenIsRefusedOnBothSides) {
  connect_by(key_, other_);
  turn_until([this] { return !here_.reason.empty() && !there_.reason.empty(); });
  for (const End* end : {&here_, &there_}) {
    EXPECT_THAT(end->reason, HasSubstr("another token"));
    EXPECT_TRUE(end->channel->refused() && !end->channel->authenticated());
    EXPECT_TRUE(end->received.empty());
  }
}

TEST_F(ChannelTest, AMessageWithoutTheRightSealEndsIt) {
  for (const bool sealed : {true, false}) {
    connect(sealed ? std::optional(seals(1, 2)) : std::nullopt, seals(2, 3));
    there_.reason.clear();
    for (int i = 0; i < 10; ++i) here_.channel->send(Heartbeat{});
    EXPECT_THAT(reason_there(), HasSubstr("without the right seal"));
    EXPECT_TRUE(there_.received.empty());
  }
}

TEST_F(ChannelTest, WhatTheOtherSideDoesNotTakeIsQueuedAndComesInOrder) {
  constexpr std::size_t kMessages = 200;
  for (std::size_t i = 0; i < kMessages; ++i) {
    RankOutput message;
    message.rank = static_cast<int>(i);
    message.bytes.assign(10000, 1);
    here_.channel->send(message);
  }
  EXPECT_GT(here_.channel->queued(), 0U);
  turn_until_received(0, kMessages);
  EXPECT_EQ(here_.channel->queued(), 0U);
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(std::get<RankOutput>(there_.received.at(i)).rank, static_cast<int>(i));
  }
}

TEST_F(ChannelTest, TheEndComesOnceAfterAllMessages) {
  here_.channel->send(Heartbeat{});
  here_.channel.reset();
  EXPECT_EQ(reason_there(), "it has closed the connection");
  EXPECT_EQ(there_.received.size(), 1U);
  there_.channel->send(Heartbeat{});  // into nothing
}

TEST_F(ChannelTest, WhatIsNoMessageEndsTheConnection) {
  auto [peer, socket] = sockets();
  make(there_, connection_of(std::move(socket)));
  ASSERT_EQ(::write(peer.get(), "\xff\xff\xff\x7f", 4), 4);
  EXPECT_THAT(reason_there(), HasSubstr("something else than messages"));
  EXPECT_TRUE(there_.received.empty());
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
  const std::string address = address_of(pipe.write);
  const auto opened = open_at(address);
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ(opened->agent, ::getpid());
  EXPECT_TRUE(send_report(opened->pipe, Heartbeat{}));
  const auto payload = FrameReader().read(pipe.read.get());
  ASSERT_TRUE(payload && *payload);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(decode(**payload).value()));
  EXPECT_THAT(open_at("1:1000000").error(), HasSubstr("cannot be reached"));
  for (const char* text : {"", "1", "1:", "1:2:", "a:2", "1:-2", "1:2 "}) {
    EXPECT_THAT(open_at(text).error(), HasSubstr("below horarun alone")) << text;
  }
  EXPECT_FALSE(open_report_pipe());
  RankOutput message;
  message.bytes.assign(5000, 1);
  EXPECT_THROW(send_report(pipe.write, message), std::length_error);
}

Message output_of(int rank, std::size_t bytes) {
  return RankOutput{
      {}, rank, false, std::vector<std::uint8_t>(bytes, static_cast<std::uint8_t>(rank))};
}

TEST(Messages, EveryKindComesBackAsItWas) {
  RankEnded ended;
  ended.pid = 4711;
  ended.cause = "first";
  Start start;
  start.arguments = {"a", "", "b c"};
  ArrivalsSeen arrivals;
  arrivals.rows.emplace_back(7, 4.0F, 9.0F, 2, 1);
  for (const Message& message : std::vector<Message>{ended, start, Heartbeat{}, Hello{}, EndAll{},
                                                     Prepared{}, RankSeen{}, arrivals}) {
    const auto decoded = decode(encode(message));
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), encode(message));
  }
  EXPECT_EQ(std::get<RankEnded>(*decode(encode(ended))).cause, "first");
  EXPECT_EQ(std::get<ArrivalsSeen>(*decode(encode(arrivals))).rows.at(0).p99_ms(), 9.0F);
  Bytes cut = encode(output_of(1, 50));
  cut.resize(cut.size() / 2);
  for (const Bytes& none : {Bytes(), Bytes(100), cut}) EXPECT_FALSE(decode(none));
}

TEST(FrameReader, ReadsToTheEndOfAMessageOrSaysWhatIsWrong) {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  FrameReader reader;
  const auto give = [&](std::span<const std::byte> bytes) {
    ASSERT_EQ(::write(pipe.write.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  };
  const Bytes frame = frame_of(encode(output_of(1, 50)));
  for (std::size_t i = 0; i < frame.size(); ++i) {
    EXPECT_FALSE(reader.read(pipe.read.get()).value()) << i;
    give(std::span(frame).subspan(i, 1));
  }
  give(Bytes(3, std::byte{7}));
  EXPECT_TRUE(reader.read(pipe.read.get()).value());
  // The connection's next bytes belong to the code that takes it over.
  Bytes rest(100);
  EXPECT_EQ(::read(pipe.read.get(), rest.data(), rest.size()), 3);
  for (const char byte : {'\0', '\xff'}) {
    give(Bytes(4, static_cast<std::byte>(byte)));
    EXPECT_THAT(FrameReader().read(pipe.read.get()).error(), HasSubstr("the most is"));
  }
  pipe.write.reset();
  EXPECT_THAT(reader.read(pipe.read.get()).error(), HasSubstr("closed the connection"));
}

TEST(Frames, ThoseOfGuardsFitIntoAPipeAtOnce) {
  EXPECT_LE(frame_of(encode(output_of(1, kMostOutputBytes))).size(), 4096U);
  RankEnded ended;
  ended.cause.assign(500, 'c');
  ended.phase.assign(128, 'p');
  ended.last_words.assign(1000, 'w');
  ended.failure.assign(500, 'f');
  EXPECT_LE(frame_of(encode(ended)).size(), 4096U);
}

constexpr char kText[] = "0123456789abcdef";

std::string write_token(const TemporaryFolder& folder, const std::string& text,
                        fs::perms more = fs::perms::none) {
  const std::string path = folder.file("token");
  std::ofstream(path) << text;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write | more);
  return path;
}

TEST(Token, IsItsTextWithoutWhiteSpaceAround) {
  const SecretKey token = *token_from_text(kText);
  EXPECT_EQ(*token, **token_from_text(std::string(" ") + kText + "\r\n"));
  EXPECT_NE(*token, **token_from_text("0123456789abcdeF"));
  for (const std::string& wrong : {std::string(), std::string("secret"), std::string("  \n"),
                                   std::string(kLongestToken + 1, 's')}) {
    EXPECT_THAT(
        token_from_text(wrong).error(),
        AllOf(HasSubstr("16 to 4096 bytes"), Not(HasSubstr("secret")), HasSubstr("openssl rand")));
  }
}

TEST(Token, ComesFromAPrivateFileOrTheVariable) {
  const TemporaryFolder folder;
  const std::string path = write_token(folder, std::string(kText) + "\n");
  fs::create_symlink(path, folder.file("link"));
  for (const auto& token : {token_from_file(path), token_from_file(folder.file("link")),
                            load_token(path, "another token of bytes"), load_token({}, kText)}) {
    ASSERT_TRUE(token) << token.error();
    EXPECT_EQ(**token, **token_from_text(kText));
  }
  EXPECT_THAT(load_token({}, nullptr).error(),
              AllOf(HasSubstr("HORARUN_TOKEN"), HasSubstr("openssl rand -hex 32")));
  EXPECT_THAT(load_token({}, "short").error(),
              AllOf(HasSubstr("HORARUN_TOKEN"), Not(HasSubstr("short\""))));
}

TEST(Token, AFileThatOthersMayReadOrThatIsNoneIsRefusedAtOnce) {
  const TemporaryFolder folder;
  for (const auto open : {fs::perms::group_read, fs::perms::others_read, fs::perms::others_write}) {
    EXPECT_THAT(
        token_from_file(write_token(folder, kText, open)).error(),
        AllOf(HasSubstr("chmod 600"), HasSubstr(folder.file("token")), Not(HasSubstr(kText))));
  }
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  for (const auto& [path, why] :
       {std::pair(folder.file("fifo"), "no regular file"),
        std::pair(folder.path().string(), "no regular file"),
        std::pair(folder.file("missing"), "No such file"),
        std::pair(write_token(folder, std::string(100'000, 'x')), "16 to 4096 bytes")}) {
    EXPECT_THAT(token_from_file(path).error(), HasSubstr(why));
  }
}

Bytes bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

TEST(Seal, OpensWholeMessagesInTheirOrderOnly) {
  Seal send(KeyBytes{1}), receive(KeyBytes{1});
  const Bytes first = send.seal(bytes("value")), second = send.seal(bytes("value"));
  EXPECT_NE(first, second);
  EXPECT_TRUE(std::ranges::search(first, bytes("value")).empty());
  EXPECT_FALSE(receive.open(second)) << "one is left out";
  EXPECT_FALSE(receive.open(std::span(first).first(first.size() - 1)));
  EXPECT_FALSE(receive.open({}));
  for (std::size_t i = 0; i < first.size(); ++i) {
    Bytes changed = first;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(receive.open(changed)) << i;
  }
  EXPECT_EQ(receive.open(first), bytes("value"));
  EXPECT_FALSE(receive.open(first)) << "repeated";
  EXPECT_EQ(receive.open(second), bytes("value"));
  EXPECT_FALSE(Seal(KeyBytes{2}).open(Seal(KeyBytes{1}).seal({})));
}

/// Whether what the first sends opens at the second.
bool reaches(SealPair from, SealPair to) {
  return to.receive.open(from.send.seal(bytes("go"))).has_value();
}

TEST(Greeting, JoinsTwoSidesOfOneTokenAndOneConnection) {
  const SecretKey key = *token_from_text(kText), other = *token_from_text("0123456789abcdeF");
  const Greeting client = fresh_greeting(), server = fresh_greeting(), later = fresh_greeting();
  EXPECT_TRUE(is_greeting(client));
  EXPECT_FALSE(is_greeting(std::span(client).first(39)));
  EXPECT_FALSE(is_greeting(bytes("GET / HTTP/1.1\r\nHost: 127.0.0.1:29500 \r\n")));
  const auto at_client = [&] { return seals_of(key, true, client, server); };
  const auto at_server = [&] { return seals_of(key, false, server, client); };
  EXPECT_TRUE(reaches(at_client(), at_server()));
  EXPECT_TRUE(reaches(at_server(), at_client()));
  EXPECT_FALSE(reaches(seals_of(other, true, client, server), at_server()));
  EXPECT_FALSE(reaches(at_client(), seals_of(key, false, later, client))) << "a recorded client";
  EXPECT_FALSE(reaches(at_server(), seals_of(key, true, later, server))) << "a recorded server";
  EXPECT_FALSE(reaches(at_server(), at_server())) << "sent back";
  EXPECT_FALSE(reaches(at_server(), seals_of(key, false, client, server)))
      << "passed on to another connection of the same server";
  Greeting changed = client;
  changed.back() ^= std::byte{1};
  EXPECT_FALSE(reaches(at_client(), seals_of(key, false, server, changed)));
}

}  // namespace
}  // namespace hora::launch
