#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/negotiation/overdue_names.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

OverdueTensor tensor(const std::string& name, std::vector<int> ready, std::vector<int> missing) {
  return {.name = name, .ready = std::move(ready), .missing = std::move(missing), .silent = {}};
}

TEST(OverdueText, NamesTheTensorAndWhoLacksIt) {
  const std::vector tensors = {tensor("late", {0, 2, 3}, {1})};
  EXPECT_EQ(overdue_text(kWorld, tensors),
            "tensor \"late\" is waited for by ranks 0, 2, 3 and has not been submitted by ranks 1. "
            "Do all ranks call the same collectives? Is one of them slow, stopped or gone?");
  EXPECT_THAT(overdue_text(ProcessSet(3), tensors),
              StartsWith("tensor \"late\" of process set 3 is waited for by ranks 0"));
}

TEST(OverdueText, TensorsThatWaitForTheSameRanksAreNamedTogether) {
  std::vector<OverdueTensor> tensors;
  for (int i = 0; i < 7; ++i) tensors.push_back(tensor("b" + std::to_string(i), {0}, {1, 2}));
  tensors.push_back(tensor("loss", {0, 1}, {2}));
  EXPECT_THAT(overdue_text(kWorld, tensors),
              StartsWith("tensors \"b0\", \"b1\", \"b2\" and 4 more are waited for by ranks 0 and "
                         "have not been submitted by ranks 1, 2; tensor \"loss\" is waited for by "
                         "ranks 0, 1 and has not been submitted by ranks 2. Do all"));
}

TEST(OverdueText, ManyKindsOfWaitsAreCounted) {
  std::vector<OverdueTensor> tensors;
  for (int i = 0; i < 50; ++i) tensors.push_back(tensor("t" + std::to_string(i), {i}, {i + 1}));
  const std::string text = overdue_text(kWorld, tensors);
  EXPECT_THAT(text, HasSubstr("; and 46 more tensors wait for other ranks. Do all"));
  EXPECT_LT(text.size(), 1000u);
}

TEST(OverdueText, SaysWhoIsSilentAndWhoWaitsElsewhere) {
  OverdueTensor one = tensor("x", {0}, {2});
  one.silent = {1, 6};
  one.elsewhere = {{kWorld, {2}}, {ProcessSet(7), {4}}};
  EXPECT_THAT(
      overdue_text(kWorld, {&one, 1}),
      StartsWith("tensor \"x\" is waited for by ranks 0 and has not been submitted by ranks "
                 "2, by ranks 1, 6 (nothing heard from their nodes about it); ranks 2 wait "
                 "under this name on process set 0: is it meant"));
  OverdueTensor silent = tensor("y", {0}, {});
  silent.silent = {1};
  EXPECT_THAT(overdue_text(kWorld, {&silent, 1}),
              HasSubstr("has not been submitted by ranks 1 (nothing heard"));
}

TEST(OverdueText, NoNameForgesALine) {
  const std::vector tensors = {tensor("x\nhora critical: \x1b[2J", {0}, {1})};
  EXPECT_THAT(overdue_text(kWorld, tensors),
              StartsWith("tensor \"x\\nhora critical: \\x1b[2J\" is"));
}

}  // namespace
}  // namespace hora::internal
