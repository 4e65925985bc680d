#include "core/launch/control/secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

namespace fs = std::filesystem;
using internal::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
  const std::string text = new_token_text();
  EXPECT_EQ(text.size(), 64U);
  EXPECT_TRUE(token_from_text(text));
  EXPECT_NE(text, new_token_text());
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
