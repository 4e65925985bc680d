#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <stdexcept>

#include "bench/harness/program.h"
#include "tests/support/golden.h"

namespace bench {
namespace {

/// The flags that a line of arguments gives, or why it is refused, without a library's words.
std::string flags_of(const std::string& line) {
  std::istringstream words(line);
  try {
    const Flags flags = take_flags({std::istream_iterator<std::string>(words), {}});
    std::ostringstream text;
    text << "filter '" << flags.filter << "', list " << flags.list << ", min_time "
         << flags.min_time << ", to_file " << flags.to_file << ", has_format " << flags.has_format
         << ", for the library:";
    for (const std::string& each : flags.rest) text << " " << each;
    return text.str();
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    return text.substr(0, text.rfind(": "));
  }
}

TEST(Flags, WhatRanksMustAgreeAboutIsKeptFromTheLibraryAndBadValuesAreNamed) {
  EXPECT_EQ(hora::internal::test::expect_golden_outcomes("bench/harness/flags.txt", flags_of), 13);
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
