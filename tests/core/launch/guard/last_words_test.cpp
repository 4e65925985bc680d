#include "core/launch/guard/last_words.h"

#include <gtest/gtest.h>

namespace hora::launch {
namespace {

TEST(LastWords, AreTheLastLines) {
  LastWords words;
  words.append("one\ntwo\nth");
  words.append("ree\nfour\n\n  \n");
  EXPECT_EQ(words.lines(2), "three\nfour");
  EXPECT_EQ(words.lines(10), "one\ntwo\nthree\nfour");
}

TEST(LastWords, OfNothingAreEmpty) {
  LastWords words;
  EXPECT_EQ(words.lines(3), "");
  words.append("\n\n");
  EXPECT_EQ(words.lines(3), "");
}

TEST(LastWords, KeepTheEndOfMuch) {
  LastWords words(10);
  words.append("a very long line\nend");
  EXPECT_EQ(words.lines(1), "end");
}

TEST(LastWords, ABacktraceOfOpenMpiDoesNotHideWhatTheProgramSaid) {
  LastWords words;
  words.append(
      "about to die\n[vm:17412] *** Process received signal ***\n"
      "[vm:17412] [10] ./p(+0x126b)[0x55fe6cc2126b]\n[vm:17412] *** End of error message ***\n");
  EXPECT_EQ(words.lines(2), "about to die");
  LastWords alone;
  alone.append("[vm:17412] *** Process received signal ***\n");
  EXPECT_EQ(alone.lines(2), "[vm:17412] *** Process received signal ***");
}

TEST(LastWords, AProgressLineIsALine) {
  LastWords words;
  words.append("10 %\r20 %\r30 %");
  EXPECT_EQ(words.lines(1), "30 %");
}

}  // namespace
}  // namespace hora::launch
