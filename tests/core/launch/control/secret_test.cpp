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
                        fs::perms mode = fs::perms::owner_read | fs::perms::owner_write) {
  const std::string path = folder.file("token");
  std::ofstream(path) << text;
  fs::permissions(path, mode);
  return path;
}

SecretKey::Material fingerprint(const SecretKey& key) {
  return key.derive({});
}

TEST(Token, WhiteSpaceAroundItDoesNotCount) {
  const auto token = token_from_text(kText);
  const auto with_spaces = token_from_text(std::string(" ") + kText + "\r\n");
  ASSERT_TRUE(token && with_spaces);
  EXPECT_EQ(fingerprint(*token), fingerprint(*with_spaces));
  const auto other = token_from_text("0123456789abcdeF");
  ASSERT_TRUE(other);
  EXPECT_NE(fingerprint(*token), fingerprint(*other));
}

TEST(Token, TooShortOrTooLongIsRefusedWithoutShowingIt) {
  for (const std::string& text : {std::string(), std::string("secret"), std::string("  \n"),
                                  std::string(kLongestToken + 1, 's')}) {
    const auto token = token_from_text(text);
    ASSERT_FALSE(token) << text;
    EXPECT_THAT(token.error(), AllOf(HasSubstr("16 to 4096 bytes"), Not(HasSubstr("secret")),
                                     HasSubstr("openssl rand")));
  }
}

TEST(Token, NewOnesAreAcceptedAndDiffer) {
  const std::string text = new_token_text();
  EXPECT_EQ(text.size(), 64U);
  EXPECT_TRUE(token_from_text(text));
  EXPECT_NE(text, new_token_text());
}

TEST(Token, ComesFromAPrivateFile) {
  const TemporaryFolder folder;
  const auto from_file = token_from_file(write_token(folder, std::string(kText) + "\n"));
  ASSERT_TRUE(from_file) << from_file.error();
  EXPECT_EQ(fingerprint(*from_file), fingerprint(*token_from_text(kText)));
  fs::create_symlink(folder.file("token"), folder.file("link"));
  EXPECT_TRUE(token_from_file(folder.file("link"))) << "secrets are mounted as links";
}

TEST(Token, AFileThatOthersMayReadIsRefused) {
  const TemporaryFolder folder;
  using fs::perms;
  for (const perms open : {perms::group_read, perms::others_read, perms::others_write}) {
    const auto token =
        token_from_file(write_token(folder, kText, perms::owner_read | perms::owner_write | open));
    ASSERT_FALSE(token);
    EXPECT_THAT(token.error(), AllOf(HasSubstr("chmod 600"), HasSubstr(folder.file("token")),
                                     Not(HasSubstr(kText))));
  }
}

TEST(Token, WhatIsNoFileIsRefusedAtOnce) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  for (const std::string& path : {folder.file("fifo"), folder.path().string()}) {
    const auto token = token_from_file(path);
    ASSERT_FALSE(token);
    EXPECT_THAT(token.error(), HasSubstr("no regular file"));
  }
  const auto missing = token_from_file(folder.file("missing"));
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error(), HasSubstr("No such file"));
  const auto long_file = token_from_file(write_token(folder, std::string(100'000, 'x')));
  ASSERT_FALSE(long_file);
  EXPECT_THAT(long_file.error(), HasSubstr("16 to 4096 bytes"));
}

TEST(Token, TheFileIsTakenBeforeTheVariable) {
  const TemporaryFolder folder;
  const std::string path = write_token(folder, kText);
  const auto from_file = load_token(path, "another token of bytes");
  ASSERT_TRUE(from_file);
  EXPECT_EQ(fingerprint(*from_file), fingerprint(*token_from_text(kText)));
  const auto from_variable = load_token({}, kText);
  ASSERT_TRUE(from_variable);
  EXPECT_EQ(fingerprint(*from_variable), fingerprint(*from_file));
}

TEST(Token, WithoutAnyItSaysHowToMakeOne) {
  const auto none = load_token({}, nullptr);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error(), AllOf(HasSubstr("HORARUN_TOKEN"), HasSubstr("openssl rand -hex 32")));
  const auto short_one = load_token({}, "short");
  ASSERT_FALSE(short_one);
  EXPECT_THAT(short_one.error(), AllOf(HasSubstr("HORARUN_TOKEN"), Not(HasSubstr("short\""))));
}

Bytes bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

Seal seal(int key) {
  return Seal(SecretKey::Material{static_cast<std::byte>(key)});
}

TEST(Seal, OpensMessagesInTheirOrderOnly) {
  Seal send = seal(1), receive = seal(1);
  const Bytes first = send.seal(bytes("value")), second = send.seal(bytes("value"));
  EXPECT_NE(first, second);
  EXPECT_TRUE(std::ranges::search(first, bytes("value")).empty());
  EXPECT_FALSE(receive.open(second)) << "one is left out";
  EXPECT_EQ(receive.open(first), bytes("value"));
  EXPECT_FALSE(receive.open(first)) << "repeated";
  EXPECT_EQ(receive.open(second), bytes("value"));
  EXPECT_FALSE(seal(2).open(seal(1).seal({})));
}

TEST(Seal, ChangedAndCutOffMessagesAreRefused) {
  Seal send = seal(1), receive = seal(1);
  const Bytes sealed = send.seal(bytes("go on"));
  EXPECT_FALSE(receive.open(std::span(sealed).first(sealed.size() - 1)));
  EXPECT_FALSE(receive.open({}));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    Bytes changed = sealed;
    changed[i] ^= std::byte{1};
    EXPECT_FALSE(receive.open(changed)) << i;
  }
  EXPECT_TRUE(receive.open(sealed));
}

TEST(Greeting, OtherProgramsAndVersionsAreTold) {
  Greeting greeting = fresh_greeting();
  EXPECT_EQ(greeting_from(greeting), greeting);
  EXPECT_NE(fresh_greeting(), greeting);
  EXPECT_THAT(greeting_from(std::span(greeting).first(43)).error(), HasSubstr("no horarun"));
  greeting[8] = std::byte{7};
  EXPECT_THAT(greeting_from(greeting).error(), HasSubstr("version 7"));
  std::ranges::copy(bytes("GET / HT"), greeting.begin());
  EXPECT_THAT(greeting_from(greeting).error(), HasSubstr("no horarun"));
}

/// Whether what the first sends opens at the second.
bool reaches(SealPair from, SealPair to) {
  return to.receive.open(from.send.seal(bytes("go"))).has_value();
}

TEST(Greeting, JoinsTwoSidesOfOneTokenAndOneConnection) {
  const SecretKey key = *token_from_text(kText), other = *token_from_text("0123456789abcdeF");
  const Greeting client = fresh_greeting(), server = fresh_greeting(), later = fresh_greeting();
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
