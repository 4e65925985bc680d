#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "bench/harness/program.h"

namespace bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& argument) {
  try {
    take_flags({argument});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Flags, Defaults) {
  const Flags flags = take_flags({});
  EXPECT_EQ(flags.filter, "");
  EXPECT_FALSE(flags.list);
  EXPECT_DOUBLE_EQ(flags.min_time, 0.5);
  EXPECT_FALSE(flags.to_file);
  EXPECT_FALSE(flags.has_format);
}

TEST(Flags, WhatRanksMustAgreeAboutIsKeptFromTheLibrary) {
  const Flags flags =
      take_flags({"--benchmark_filter=mpi", "--benchmark_out=a.json", "--benchmark_min_time=0.25s",
                  "--benchmark_list_tests", "--benchmark_format=json", "--other"});
  EXPECT_EQ(flags.filter, "mpi");
  EXPECT_TRUE(flags.list);
  EXPECT_DOUBLE_EQ(flags.min_time, 0.25);
  EXPECT_TRUE(flags.to_file);
  EXPECT_TRUE(flags.has_format);
  EXPECT_THAT(flags.rest,
              ElementsAre("--benchmark_out=a.json", "--benchmark_format=json", "--other"));
}

TEST(Flags, AFileIsNotAskedForByItsFormat) {
  EXPECT_FALSE(take_flags({"--benchmark_out_format=json"}).to_file);
  EXPECT_FALSE(take_flags({"--benchmark_list_tests=false"}).list);
}

TEST(Flags, BadValuesAreRefusedWithFlagAndValue) {
  for (const char* value : {"", "0", "-1", "fast", "1x", "inf", "nan"}) {
    const std::string flag = std::string("--benchmark_min_time=") + value;
    EXPECT_THAT(refusal(flag), HasSubstr(std::string("--benchmark_min_time is '") + value + "'"));
  }
  EXPECT_THAT(refusal("--benchmark_filter=("), HasSubstr("--benchmark_filter is '('"));
  EXPECT_THAT(refusal("--benchmark_out_format=csv"), HasSubstr("'csv'"));
}

TEST(Flags, FilterIsSearchedForInNames) {
  const std::string name = "allreduce/mpi/1048576";
  for (const char* filter : {"", "all", "/mpi/", "^allreduce/(mpi|hora)/[0-9]+$", "-hora"}) {
    EXPECT_TRUE(matches(filter, name)) << filter;
  }
  for (const char* filter : {"/1048$", "-mpi"}) EXPECT_FALSE(matches(filter, name)) << filter;
}

}  // namespace
}  // namespace bench
