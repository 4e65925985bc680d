#include "core/launch/control/channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/launch/control/system.h"
#include "tests/core/launch/texts.h"

namespace hora::launch {
namespace {

namespace fs = std::filesystem;
using internal::test::TemporaryFolder;
using testing::HasSubstr;
using namespace std::chrono_literals;

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

RankOutput output_of(int rank, std::size_t bytes) {
  return {{}, rank, false, std::vector<std::uint8_t>(bytes, static_cast<std::uint8_t>(rank))};
}

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

TEST_F(ChannelTest, AnUnknownSideProvesItsTokenBeforeAnythingElse) {
  const SecretKey key = *token_from_text("a token of this test"),
                  other = *token_from_text("a token of another job");
  connect_by(key, key);
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

  connect_by(key, other);
  here_.received.clear(), there_.received.clear();
  for (const End* end : {&here_, &there_}) {
    turn_until([end] { return !end->reason.empty(); });
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
    here_.channel->send(output_of(static_cast<int>(i), 10000));
  }
  EXPECT_GT(here_.channel->queued(), 0U);
  turn_until_received(0, kMessages);
  EXPECT_EQ(here_.channel->queued(), 0U);
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(std::get<RankOutput>(there_.received.at(i)).rank, static_cast<int>(i));
  }
}

TEST_F(ChannelTest, TheEndComesOnceAfterAllMessagesOrAtWhatIsNone) {
  here_.channel->send(Heartbeat{});
  here_.channel.reset();
  EXPECT_EQ(reason_there(), "it has closed the connection");
  EXPECT_EQ(there_.received.size(), 1U);
  there_.channel->send(Heartbeat{});  // into nothing
  auto [peer, socket] = sockets();
  make(there_, connection_of(std::move(socket)));
  there_.reason.clear();
  ASSERT_EQ(::write(peer.get(), "\xff\xff\xff\x7f", 4), 4);
  EXPECT_THAT(reason_there(), HasSubstr("something else than messages"));
  EXPECT_EQ(there_.received.size(), 1U);
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
  EXPECT_THROW(send_report(pipe.write, output_of(1, 5000)), std::length_error);
}

TEST(Messages, EveryKindComesBackAsItWas) {
  const auto ended =
      test::made<RankEnded>(&RankEnded::pid, 4711, &RankEnded::cause, std::string("first"));
  const auto start = test::made<Start>(&Start::arguments, test::Line{"a", "", "b c"});
  ArrivalsSeen arrivals;
  arrivals.rows.emplace_back(7, 4.0F, 9.0F, 2, 1);
  for (const Message& message :
       std::vector<Message>{ended, start, Heartbeat{}, Hello{}, EndAll{}, Prepared{}, RankSeen{},
                            NetworkTold{}, arrivals}) {
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
  const auto ended = test::made<RankEnded>(
      &RankEnded::cause, std::string(500, 'c'), &RankEnded::phase, std::string(128, 'p'),
      &RankEnded::last_words, std::string(1000, 'w'), &RankEnded::failure, std::string(500, 'f'));
  EXPECT_LE(frame_of(encode(ended)).size(), 4096U);
}

constexpr char kText[] = "0123456789abcdef";

TEST(Token, ComesFromATextAPrivateFileOrTheVariable) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text, int mode) {
    const std::string path = test::written(folder, name, text);
    fs::permissions(path, static_cast<fs::perms>(mode));
    return path;
  };
  const std::string path = file("token", std::string(kText) + "\n", 0600);
  fs::create_symlink(path, folder.file("link"));
  for (const auto& token : {token_from_text(std::string(" ") + kText + "\r\n"),
                            token_from_file(path), token_from_file(folder.file("link")),
                            load_token(path, "another token of bytes"), load_token({}, kText)}) {
    ASSERT_TRUE(token) << token.error();
    EXPECT_EQ(**token, **token_from_text(kText));
  }
  EXPECT_NE(**token_from_text(kText), **token_from_text("0123456789abcdeF"));
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  std::string text;
  for (const auto& wrong :
       {token_from_text(""), token_from_text("secret"), token_from_text("  \n"),
        token_from_text(std::string(kLongestToken + 1, 's')), load_token({}, nullptr),
        load_token({}, "short"), token_from_file(file("group", kText, 0640)),
        token_from_file(file("others", kText, 0604)), token_from_file(file("write", kText, 0602)),
        token_from_file(folder.file("fifo")), token_from_file(folder.path()),
        token_from_file(folder.file("missing")),
        token_from_file(file("long", std::string(100'000, 'x'), 0600))}) {
    text += test::error_of(wrong) + "\n";
  }
  test::expect_texts("tokens that are refused", test::with(text, folder.path(), "FOLDER"));
}

Bytes bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

TEST(Seal, OpensWholeMessagesInTheirOrderOnly) {
  Seal send(KeyBytes{1}), receive(KeyBytes{1});
  const Bytes value = bytes("value"), first = send.seal(value), second = send.seal(value);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::search(first.begin(), first.end(), value.begin(), value.end()), first.end());
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

std::string read_all(const UniqueFd& descriptor) {
  std::string text;
  char bytes[256];
  ssize_t count = 0;
  while ((count = ::read(descriptor.get(), bytes, sizeof bytes)) > 0) {
    text.append(bytes, static_cast<std::size_t>(count));
  }
  return text;
}

/// Returns what a program prints, and its status.
std::pair<std::string, int> output_of(ChildOptions options) {
  Pipe pipe = make_pipe();
  options.output = pipe.write.get();
  const auto child = start_child(options);
  EXPECT_TRUE(child) << child.error();
  if (!child) return {};
  pipe.write.reset();
  const std::string text = read_all(pipe.read);
  int status = 0;
  EXPECT_EQ(::waitpid(*child, &status, 0), *child);
  return {text, status};
}

TEST(StartChild, GivesArgumentsFolderAndEnvironment) {
  ASSERT_EQ(::setenv("HORARUN_TEST", "before", 1), 0);
  const auto [text, status] = output_of(
      {.arguments = {"sh", "-c", "pwd; env | grep ^HORARUN_TEST=; echo $1; exit 3", "sh", "a b"},
       .environment = {"HORARUN_TEST=of the test"},
       .folder = "/"});
  ::unsetenv("HORARUN_TEST");
  EXPECT_EQ(text, "/\nHORARUN_TEST=of the test\na b\n");
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST(StartChild, WhatCannotBeStartedIsNamed) {
  std::string text;
  for (const ChildOptions& options : {ChildOptions{.arguments = {"/there/is/none"}},
                                      {.arguments = {"true"}, .folder = "/there/is/none"},
                                      {.arguments = {"/etc/passwd"}}}) {
    text += test::error_of(start_child(options)) + "\n";
  }
  test::expect_texts("programs that cannot be started", text);
}

TEST(StartChild, StandardDescriptorsMayBeExchanged) {
  Pipe input = make_pipe();
  ASSERT_EQ(::write(input.write.get(), "text", 4), 4);
  input.write.reset();
  Pipe output = make_pipe();
  const auto child =
      start_child({.arguments = {"cat"}, .input = input.read.get(), .output = output.write.get()});
  ASSERT_TRUE(child);
  output.write.reset();
  EXPECT_EQ(read_all(output.read), "text");
  ::waitpid(*child, nullptr, 0);
}

TEST(StartChild, SignalsAreAsByDefault) {
  ::signal(SIGUSR1, SIG_IGN);
  const auto [text, status] = output_of({.arguments = {"sh", "-c", "kill -USR1 $$; echo alive"}});
  ::signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(text, "");
  EXPECT_EQ(WTERMSIG(status), SIGUSR1);
}

tl::expected<CapturedOutput, std::string> shell(const std::string& text,
                                                std::chrono::milliseconds limit = 20s) {
  return captured_output({"/bin/sh", "-c", text}, limit);
}

TEST(CapturedOutput, IsBothStreamsAndTheStatus) {
  const auto output = shell("echo a; echo b >&2; exit 3");
  ASSERT_TRUE(output) << output.error();
  EXPECT_EQ(output->text, "a\nb\n");
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(shell("kill -9 $$")->status, 137);
  EXPECT_EQ(shell("cat")->text, "");
  EXPECT_EQ(shell("head -c 1000000 /dev/zero")->text.size(), kMostCaptured);
  EXPECT_EQ(captured_output({"/no/such/program"}, 1s).error(),
            "/no/such/program: No such file or directory");
}

TEST(CapturedOutput, EndsAProgramThatTakesTooLongWithItsChildren) {
  const auto begin = std::chrono::steady_clock::now();
  const auto output = shell("sleep 60 & sleep 60", 100ms);
  ASSERT_FALSE(output);
  EXPECT_THAT(output.error(), HasSubstr("it has not ended after 100 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
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

TEST(EventLoop, GivesADescriptorNoEventOfAnotherThatHadItsNumber) {
  Pipe first = make_pipe(), closed = make_pipe(), quiet = make_pipe();
  const int number = closed.read.get();
  ASSERT_LT(first.read.get(), number);
  first.write.reset();
  closed.write.reset();
  EventLoop loop;
  loop.watch(number, POLLIN, [](short) { FAIL() << "forgotten"; });
  loop.watch(first.read.get(), POLLIN, [&](short) {
    loop.forget(first.read.get());
    loop.forget(number);
    ASSERT_EQ(::dup2(quiet.read.get(), number), number);
    loop.watch(number, POLLIN, [](short) { FAIL() << "nothing is written there"; });
  });
  int turns = 0;
  loop.each(std::chrono::milliseconds(1), [&] {
    if (++turns == 3) loop.stop();
  });
  loop.run();
}

}  // namespace
}  // namespace hora::launch
