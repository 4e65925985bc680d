#include "core/launch/control/token.h"

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

SecretKey::Bytes fingerprint(const SecretKey& key) {
  return key.authenticate({});
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

TEST(SecretKey, AuthenticatesThePartsLaidEndToEnd) {
  const auto token = token_from_text(kText);
  ASSERT_TRUE(token);
  const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array<std::span<const std::byte>, 1> whole{bytes};
  const std::array<std::span<const std::byte>, 2> parts{std::span(bytes).first(1),
                                                        std::span(bytes).subspan(1)};
  SecretKey::Bytes tag = token->authenticate(whole);
  EXPECT_TRUE(token->verify(parts, tag));
  for (std::byte& byte : tag) {
    byte ^= std::byte{1};
    EXPECT_FALSE(token->verify(parts, tag));
    byte ^= std::byte{1};
  }
}

}  // namespace
}  // namespace hora::launch
