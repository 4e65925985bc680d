#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/negotiation/overdue_names.h"

namespace hora::internal {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Signature base() {
  Signature signature;
  signature.shape = {3, 4};
  return signature;
}

std::string text_with(const Signature& other) {
  return mismatch_text({"layer1.weight", {{base(), {0, 1, 2}}, {other, {3}}}});
}

TEST(MismatchText, NamesTensorRanksAndBothValues) {
  Signature other = base();
  other.shape = {3, 5};
  EXPECT_EQ(text_with(other),
            "tensor \"layer1.weight\": ranks disagree about its shape: ranks 0-2: allreduce "
            "float32 [3, 4] sum on cpu; rank 3: allreduce float32 [3, 5] sum on cpu. Submit the "
            "same operation, type, shape, reduction and root under one name.");
}

TEST(MismatchText, OfARankThatHasJoinedSaysWhatGoesOn) {
  Signature joined;
  joined.kind = OperationKind::join;
  Signature gathered = base();
  gathered.kind = OperationKind::allgather;
  EXPECT_THAT(mismatch_text({"x", {{gathered, {0, 1}}, {joined, {2}}}}),
              AllOf(HasSubstr("tensor \"x\": rank 2 has called join() and nothing more to bring: "
                              "only an allreduce goes on then, and ranks 0, 1 submitted allgather"),
                    Not(HasSubstr("disagree"))));
}

TEST(MismatchText, NoNameGetsOutOfItsQuotationMarks) {
  Signature other = base();
  other.shape = {3, 5};
  const std::string text = mismatch_text({"x\n\x1b[2J", {{base(), {0}}, {other, {1}}}});
  EXPECT_THAT(text, HasSubstr("tensor \"x\\n\\x1b[2J\": ranks disagree about its shape"));
  const std::string long_name(std::size_t{1} << 20, 'n');
  EXPECT_LT(mismatch_text({long_name, {{base(), {0}}, {other, {1}}}}).size(), 2000u);
}

TEST(MismatchText, NamesEveryFieldThatDiffers) {
  const auto expect = [](auto change, const std::string& what) {
    Signature other = base();
    change(other);
    EXPECT_THAT(text_with(other), HasSubstr("disagree about its " + what + ": "));
  };
  expect([](Signature& s) { s.kind = OperationKind::broadcast; }, "operation");
  expect([](Signature& s) { s.type = DataType::bfloat16; }, "type");
  expect([](Signature& s) { s.shape = {12}; }, "number of dimensions, shape");
  expect([](Signature& s) { s.op = ReduceOp::average; }, "reduction");
  expect([](Signature& s) { s.root = 1; }, "root");
  expect([](Signature& s) { s.device = DeviceKind::cuda; }, "device");
  expect(
      [](Signature& s) {
        s.kind = OperationKind::broadcast;
        s.type = DataType::int64;
        s.shape = {};
        s.op = ReduceOp::average;
        s.root = 2;
        s.device = DeviceKind::cuda;
      },
      "operation, type, number of dimensions, shape, reduction, root, device");
}

TEST(MismatchText, ShowsAtMostEightValues) {
  Report report{"g", {}};
  for (int rank = 0; rank < 11; ++rank) {
    Signature signature;
    signature.shape = {100 + rank};
    report.values.push_back({signature, {rank}});
    const std::string text = mismatch_text(report);
    const int shown = std::min(rank, 7);
    EXPECT_THAT(text, HasSubstr("rank " + std::to_string(shown) + ": allreduce float32 [" +
                                std::to_string(100 + shown) + "]"));
    if (rank < 8) {
      EXPECT_THAT(text, Not(HasSubstr("other values")));
    } else {
      EXPECT_THAT(text, Not(HasSubstr("[108]")));
      EXPECT_THAT(text, HasSubstr("; and " + std::to_string(rank - 7) + " other values"));
    }
  }
}

}  // namespace
}  // namespace hora::internal
