#include <gtest/gtest.h>
#include <hora/error.h>

#include <optional>
#include <set>
#include <thread>

#include "core/base/diagnostics.h"

namespace hora::internal {
namespace {

TEST(Error, CarriesItsCause) {
  const Error error(ErrorCode::mismatch, "ranks disagree", 3, "layer1.weight");
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_STREQ(error.what(), "ranks disagree");
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.tensor(), "layer1.weight");
}

TEST(Error, RankAndTensorMayBeUnknown) {
  const Error error(ErrorCode::transport, "MPI_Isend failed");
  EXPECT_EQ(error.rank(), -1);
  EXPECT_EQ(error.tensor(), "");
}

TEST(Error, IsCaughtAsARuntimeError) {
  EXPECT_THROW(throw Error(ErrorCode::shut_down, "gone"), std::runtime_error);
}

TEST(Error, ItsTextCanBePrinted) {
  using namespace std::string_literals;
  const std::string name = "x\n\0\x1b[2J"s;
  const Error error(ErrorCode::mismatch, "tensor \"" + name + "\" is odd", 0, name);
  EXPECT_STREQ(error.what(), "tensor \"x\\n\\x00\\x1b[2J\" is odd");
  EXPECT_EQ(error.tensor(), name);
}

/// Remembers what a destructor could know of the exception that runs it.
struct Witness {
  ~Witness() { text = error_in_flight(); }
  std::string& text;
};

TEST(Error, IsKnownToDestructorsWhileItUnwindsTheStack) {
  std::string seen;
  try {
    const Witness witness{seen};
    throw Error(ErrorCode::shut_down, "gone");
  } catch (const Error&) {
  }
  EXPECT_EQ(seen, "gone");
  EXPECT_EQ(error_in_flight(), "");
}

TEST(Error, OneThatIsOverIsNotTakenForAnotherException) {
  std::string seen = "not run";
  try {
    throw Error(ErrorCode::shut_down, "over");
  } catch (const Error&) {
  }
  try {
    const Witness witness{seen};
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(seen, "");
}

TEST(Error, AnotherThreadsIsNotTakenForOnesOwn) {
  std::optional<Error> error;
  std::thread([&] { error.emplace(ErrorCode::shut_down, "elsewhere"); }).join();
  EXPECT_EQ(error_in_flight(), "");
  error.reset();
  error.emplace(ErrorCode::shut_down, std::string(5000, 'x'));
  EXPECT_EQ(error_in_flight(), std::string(1000, 'x')) << "as far as it fits";
  std::thread([&] { error.reset(); }).join();
}

TEST(ErrorCode, EachHasItsName) {
  std::set<std::string_view> names;
  for (std::uint8_t code = 0; code <= 8; ++code)
    names.insert(name_of(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 9u);
  EXPECT_EQ(names.count("unknown error"), 0u);
  EXPECT_EQ(name_of(ErrorCode::invalid_setting), "invalid_setting");
  EXPECT_EQ(name_of(static_cast<ErrorCode>(9)), "unknown error");
}

}  // namespace
}  // namespace hora::internal
