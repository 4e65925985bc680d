#include <gtest/gtest.h>
#include <hora/error.h>

#include <set>

namespace hora {
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

TEST(ErrorCode, EachHasItsName) {
  std::set<std::string_view> names;
  for (std::uint8_t code = 0; code <= 7; ++code)
    names.insert(name_of(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names.count("unknown error"), 0u);
  EXPECT_EQ(name_of(ErrorCode::invalid_setting), "invalid_setting");
  EXPECT_EQ(name_of(static_cast<ErrorCode>(8)), "unknown error");
}

}  // namespace
}  // namespace hora
