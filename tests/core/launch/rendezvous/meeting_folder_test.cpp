#include "core/launch/rendezvous/meeting_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <list>
#include <set>

#include "tests/core/launch/rendezvous/meeting_nodes.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

namespace fs = std::filesystem;
using internal::test::TemporaryFolder;
using test::MeetingNode;
using test::node_options;
using testing::AllOf;
using testing::HasSubstr;

std::string place_of(const TemporaryFolder& folder) {
  return "file://" + folder.path().string();
}

Meeting meeting() {
  return {{*parse_address("10.0.0.1"), 4000}, "host0"};
}

TEST(MeetingFolder, TellsWhatNode0HasPublished) {
  const TemporaryFolder folder;
  const MeetingFolder meeting_folder(folder.path().string(), "job");
  EXPECT_THAT(meeting_folder.read().error(), HasSubstr("not written there yet"));
  {
    const auto host = MeetingHost::claim(meeting_folder);
    ASSERT_TRUE(host);
    static_cast<void>(host->make_token());
    host->publish(meeting());
    EXPECT_EQ(meeting_folder.read(), meeting());
    EXPECT_TRUE(meeting_folder.read_token());
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write);
    }
    EXPECT_FALSE(MeetingHost::claim(meeting_folder)) << "two claims";
    EXPECT_TRUE(MeetingHost::claim(MeetingFolder(folder.path().string(), "other")));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(MeetingFolder, WhatAKilledNode0HasLeftIsRemoved) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("job.rendezvous")) << "{}";
  std::ofstream(folder.file("job.token")) << "an old token of that job";
  std::ofstream(folder.file("job.lock")) << "";
  const auto host = MeetingHost::claim(MeetingFolder(folder.path().string(), "job"));
  EXPECT_TRUE(host);
  EXPECT_FALSE(fs::exists(folder.file("job.token")));
  EXPECT_FALSE(fs::exists(folder.file("job.rendezvous")));
}

TEST(MeetingFolder, WrongFilesAreNamed) {
  const TemporaryFolder folder;
  const MeetingFolder meeting_folder(folder.path().string(), "job");
  for (const char* text : {"", "{", "[]", R"({"address":"a","port":1,"host":"h"})",
                           R"({"address":"10.0.0.1","port":0,"host":"h"})",
                           R"({"address":"10.0.0.1","port":65536,"host":"h"})",
                           R"({"address":"10.0.0.1","port":-1,"host":"h"})",
                           R"({"address":"10.0.0.1","port":1,"host":2})"}) {
    std::ofstream(folder.file("job.rendezvous")) << text;
    const auto read = meeting_folder.read();
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error(), HasSubstr("no file of a horarun"));
  }
  fs::remove(folder.file("job.rendezvous"));
  fs::create_symlink("/etc/passwd", folder.file("job.rendezvous"));
  EXPECT_FALSE(meeting_folder.read());
  EXPECT_THAT(MeetingFolder("/no/such/folder", "job").read().error(), HasSubstr("/no/such/folder"));
}

TEST(MeetingFolder, WhatTakesTheLocksPlaceIsAnError) {
  const TemporaryFolder folder;
  fs::create_symlink(folder.file("elsewhere"), folder.file("job.lock"));
  internal::test::expect_error(
      ErrorCode::invalid_argument, HasSubstr("cannot meet in the folder"),
      [&] { static_cast<void>(MeetingHost::claim(MeetingFolder(folder.path().string(), "job"))); });
  EXPECT_FALSE(fs::exists(folder.file("elsewhere")));
}

TEST(RendezvousInAFolder, NeedsNoTokenWhereTheFolderIsTheUsersAlone) {
  for (const bool ranked : {true, false}) {
    const TemporaryFolder folder;
    std::list<MeetingNode> nodes;
    for (int rank = 2; rank >= 0; --rank) {
      const auto node_rank = ranked ? std::optional(rank) : std::nullopt;
      nodes.emplace_back(node_options(place_of(folder), node_rank, 3), nullptr);
    }
    std::set<int> ranks;
    for (MeetingNode& node : nodes) ranks.insert(node.met().node_rank);
    EXPECT_THAT(ranks, testing::ElementsAre(0, 1, 2));
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(RendezvousInAFolder, OthersMayEnterItOnlyWithAToken) {
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::group_exec | fs::perms::group_read,
                  fs::perm_options::add);
  MeetingNode alone(node_options(place_of(folder), 0, 2), nullptr);
  EXPECT_THAT(alone.error(), AllOf(HasSubstr("chmod 700"), HasSubstr("HORARUN_TOKEN")));
  MeetingNode node0(node_options(place_of(folder), 0, 2)),
      node1(node_options(place_of(folder), 1, 2));
  node0.met(), node1.met();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(RendezvousInAFolder, AStaleFileIsWaitedOut) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("job.rendezvous"))
      << R"({"address":"127.0.0.1","port":)" << test::free_port() << R"(,"host":"old"})";
  std::ofstream(folder.file("job.token")) << "an old token of that job";
  fs::permissions(folder.file("job.token"), fs::perms::owner_read);
  MeetingNode node1(node_options(place_of(folder), 1, 2), nullptr);
  ASSERT_TRUE(node1.lines().come_to_have("Connection refused")) << node1.lines().text();
  MeetingNode node0(node_options(place_of(folder), 0, 2), nullptr);
  node0.met(), node1.met();
}

TEST(RendezvousInAFolder, TwoNodes0AreNamed) {
  const TemporaryFolder folder;
  MeetingNode node0(node_options(place_of(folder), 0, 2));
  ASSERT_TRUE(node0.lines().come_to_have("waits for"));
  RendezvousOptions options = node_options(place_of(folder), 0, 2);
  options.host = "other";
  MeetingNode second(options);
  EXPECT_THAT(second.error(), AllOf(HasSubstr("host host0"), HasSubstr("host other"),
                                    HasSubstr("both meet as node 0")));
  MeetingNode node1(node_options(place_of(folder), 1, 2));
  node0.met(), node1.met();
}

TEST(RendezvousInAFolder, AMissingFolderIsNamed) {
  RendezvousOptions options = node_options("file:///no/such/folder", 0, 2);
  options.timeout = std::chrono::milliseconds(300);
  MeetingNode node0(options);
  EXPECT_THAT(node0.error(), HasSubstr("No such file or directory"));
  options.node_rank = 1;
  MeetingNode node1(options);
  EXPECT_THAT(node1.error(), HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace hora::launch
