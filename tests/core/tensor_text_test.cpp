#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "core/base/text.h"

namespace hora::internal {
namespace {

TEST(TensorText, NamesAreQuoted) {
  EXPECT_EQ(tensor_text("weight"), "tensor \"weight\"");
  EXPECT_EQ(tensor_text("a\nb"), "tensor \"a\\nb\"");
}

TEST(TensorText, WithoutANameItSaysWhatWasCalled) {
  EXPECT_EQ(tensor_text(""), "an unnamed tensor");
  EXPECT_EQ(tensor_text("hora.unnamed.allreduce.0"), "the unnamed allreduce");
  EXPECT_EQ(tensor_text("hora.unnamed.barrier.1"), "the unnamed barrier in slot 1");
  EXPECT_EQ(tensor_text("hora.unnamed."), "the unnamed ");
}

TEST(TensorText, OwnCalls) {
  EXPECT_EQ(tensor_text("hora.join"), "join()");
  EXPECT_EQ(tensor_text("hora.process_sets.add"), "add_process_set()");
  EXPECT_EQ(tensor_text("hora.process_sets.remove"), "remove_process_set()");
  EXPECT_EQ(tensor_text("hora.joined"), "tensor \"hora.joined\"");
}

TEST(RanksText, WritesRunsOfThreeAndMoreAsRanges) {
  const auto text = [](const std::vector<int>& ranks) { return ranks_text(ranks); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({4}), "4");
  EXPECT_EQ(text({0, 1}), "0, 1");
  EXPECT_EQ(text({0, 1, 2}), "0-2");
  EXPECT_EQ(text({0, 1, 2, 5, 7, 8, 10, 11, 12, 13}), "0-2, 5, 7, 8, 10-13");
  EXPECT_EQ(text({INT_MAX, INT_MIN, INT_MIN + 1}), "2147483647, -2147483648, -2147483647");
}

}  // namespace
}  // namespace hora::internal
