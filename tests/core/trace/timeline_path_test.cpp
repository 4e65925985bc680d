#include <gtest/gtest.h>

#include "core/base/settings.h"
#include "core/trace/trace.h"

namespace hora::internal {
namespace {

TEST(TimelinePath, TheRankStandsWhereThePathSays) {
  EXPECT_EQ(timeline_file("%r.json", 3), "3.json");
  EXPECT_EQ(timeline_file("/a/%r/t%r", 12), "/a/12/t12");
  EXPECT_EQ(timeline_file("%r%r", 0), "00");
}

TEST(TimelinePath, TheRankComesBeforeTheExtensionElsewhere) {
  EXPECT_EQ(timeline_file("t.json", 0), "t.0.json");
  EXPECT_EQ(timeline_file("/a.b/t", 7), "/a.b/t.7");
  EXPECT_EQ(timeline_file("a/t.x.json", 10), "a/t.x.10.json");
}

TEST(TimelinePath, SaysWhatIsWrong) {
  EXPECT_EQ(wrong_with_timeline_path("/a b/%r.json"), "");
  EXPECT_EQ(wrong_with_timeline_path("%r%r"), "");
  EXPECT_NE(wrong_with_timeline_path(""), "");
  EXPECT_NE(wrong_with_timeline_path("100%"), "");
  EXPECT_NE(wrong_with_timeline_path("%r%d"), "");
  EXPECT_NE(wrong_with_timeline_path("a\nb"), "");
  for (const char* folder : {"/", "a/", "/a/b//", ".", "..", "a/..", "./", "/tmp"}) {
    EXPECT_EQ(wrong_with_timeline_path(folder), "the path names a folder, not a file") << folder;
  }
}

}  // namespace
}  // namespace hora::internal
