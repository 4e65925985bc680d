// Overdue names by themselves, and what leaders report of them.
//
// Tensors that are about to run out of time: by themselves, and what leaders do about them.
#include "core/negotiation/overdue_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/core/negotiation/leader_under_test.h"

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

using namespace std::chrono_literals;
using test::LeaderUnderTest;
using test::report;
using test::shaped;
using test::two_nodes_of_two;

Mail overdue(const std::string& name) {
  return {.kind = MailKind::overdue, .name = name, .signature = {}, .location = {}};
}

Mail elsewhere(const std::string& name, ProcessSet set) {
  return {.kind = MailKind::elsewhere,
          .name = name,
          .signature = {},
          .location = {},
          .process_set = set};
}

// Five nodes: 0 has the children 1, 2, 4; 3 is below 2.
const Topology five_nodes{{{0}, {1}, {2, 3}, {4, 5}, {6}}};

TEST(Overdue, NamesTheRanksThatLackANewTensor) {
  LeaderUnderTest root(five_nodes, 0);
  root.leader.on_mail(0, report("late", 8), 0s);
  root.leader.on_mail(0, overdue("late"), 1s);
  const LeaderOutput first = root.leader.take(1s);
  EXPECT_TRUE(first.warnings.empty()) << "others may be about to say what they know";
  ASSERT_EQ(first.decisions.size(), 1u);
  EXPECT_EQ(first.decisions[0].asked, std::vector<std::string>{"late"});
  const auto when = root.leader.deadline();
  ASSERT_TRUE(when.has_value());
  root.leader.on_up(2, {.presence = {{"late", {3, 4}, {2, 5}}}}, 1s);
  const auto warnings = root.leader.take(*when).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(
      warnings[0].find("\"late\" is waited for by ranks 0, 3, 4 and has not been submitted by "
                       "ranks 2, 5, by ranks 1, 6 (nothing heard"),
      std::string::npos)
      << warnings[0];
  EXPECT_EQ(root.leader.deadline(), std::nullopt);
}

TEST(Overdue, AllTensorsThatWaitAreInOneWarning) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  for (int i = 0; i < 7; ++i) {
    const std::string name = "bucket" + std::to_string(i);
    root.leader.on_mail(0, report(name, 8), 0s);
    root.leader.on_mail(0, overdue(name), i < 4 ? 1000ms : 1300ms);
  }
  root.leader.take(1300ms);
  const auto when = root.leader.deadline();
  ASSERT_TRUE(when.has_value());
  const auto warnings = root.leader.take(*when).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("\"bucket0\", \"bucket1\", \"bucket2\" and 4 more are waited for"),
            std::string::npos)
      << warnings[0];
  EXPECT_EQ(root.leader.deadline(), std::nullopt);
}

TEST(Overdue, BetweenTwoWarningsIsTheInterval) {
  LeaderUnderTest root(two_nodes_of_two, 0, kWorld, 10s);
  root.leader.on_mail(0, report("a", 8), 0s);
  root.leader.on_mail(0, overdue("a"), 10s);
  const auto first = root.leader.deadline();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(root.leader.take(*first).warnings.size(), 1u);
  // Another rank has submitted later, and reports the same tensor later.
  root.leader.on_up(1, {.presence = {{"a", {2}, {3}}}}, 13s);
  EXPECT_EQ(root.leader.deadline(), *first + 10s);
  EXPECT_TRUE(root.leader.take(19s).warnings.empty());
  root.leader.on_mail(0, overdue("a"), 20s);
  const auto second = root.leader.take(*first + 10s).warnings;
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(second[0].find("waited for by ranks 0, 2 and has not"), std::string::npos) << second[0];
}

TEST(Overdue, ALeaderTellsItsParentWhatItKnowsOfItsSubtree) {
  LeaderUnderTest leader(five_nodes, 2);
  leader.leader.on_mail(1, report("late", 8), 0s);
  leader.leader.on_up(3, {.reports = {{"late", {{shaped(8), {}}}}}}, 0s);
  leader.leader.on_mail(1, overdue("late"), 1s);
  const auto presence = leader.leader.take(1s).up.presence;
  ASSERT_EQ(presence.size(), 1u);
  EXPECT_EQ(presence[0], (Presence{"late", {3, 4, 5}, {2}}));
}

TEST(Overdue, PresencePassesThroughALeaderWhoseRanksAreNotReady) {
  LeaderUnderTest leader(five_nodes, 2);
  leader.leader.on_up(3, {.presence = {{"late", {5}, {4}}}}, 1s);
  const auto presence = leader.leader.take(1s).up.presence;
  ASSERT_EQ(presence.size(), 1u);
  EXPECT_EQ(presence[0], (Presence{"late", {5}, {2, 3, 4}}));
}

TEST(Overdue, ASubtreeThatIsReadyForAKnownNameStillComplains) {
  LeaderUnderTest leader(two_nodes_of_two, 1);
  for (const int r : {0, 1}) leader.leader.on_mail(r, report("g", 8), 0s);
  leader.leader.on_decision({.assigned = {{"g", 5, {}}}});
  leader.leader.take(0s);
  leader.leader.on_node_ready(5);
  EXPECT_EQ(leader.leader.take(0s).up.ready, std::vector<Id>{5});
  leader.leader.on_mail(0, overdue("g"), 1s);
  auto up = leader.leader.take(1s).up;
  EXPECT_TRUE(up.ready.empty()) << "told twice";
  ASSERT_EQ(up.presence.size(), 1u) << "no other node tells the root of it";
  EXPECT_EQ(up.presence[0], (Presence{"g", {2, 3}, {}}));
  // Once it has run, a report that was under way means nothing.
  leader.leader.on_decision({.number = 1, .run = {5}});
  leader.leader.on_mail(0, overdue("g"), 2s);
  EXPECT_TRUE(leader.leader.take(2s).up.empty());
}

TEST(Overdue, NothingIsSaidOfATensorThatWasDecidedMeanwhile) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.leader.on_mail(0, report("g", 8), 0s);
  root.leader.on_mail(0, overdue("g"), 1s);
  root.leader.on_mail(1, report("g", 8), 1s);
  root.leader.on_up(1, {.reports = {{"g", {{shaped(8), {}}}}}}, 1s);
  EXPECT_EQ(root.leader.take(1s).decisions.size(), 1u);
  EXPECT_TRUE(root.leader.take(10s).warnings.empty());
}

// Two sets wait for one another's ranks: no error, for each may still submit to the other.
TEST(Overdue, SaysWhoWaitsUnderTheNameOnAnotherSet) {
  LeaderUnderTest root(five_nodes, 0, ProcessSet(3));
  root.leader.on_mail(0, report("x", 8), 0s);
  root.leader.on_mail(0, overdue("x"), 1s);
  root.leader.take(1s);
  root.leader.on_up(2, {.presence = {{"x", {3}, {2, 4, 5}}}, .elsewhere = {{"x", 5, kWorld}}}, 1s);
  root.leader.on_up(
      2, {.elsewhere = {{"x", 2, kWorld}, {"x", 4, ProcessSet(7)}, {"y", 4, ProcessSet(7)}}}, 1s);
  const auto warnings = root.leader.take(10s).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  for (const char* text : {"\"x\" of process set 3 is waited for by ranks 0, 3 and has not",
                           "; ranks 2, 5 wait under this name on process set 0",
                           "; ranks 4 wait under this name on process set 7"}) {
    EXPECT_NE(warnings[0].find(text), std::string::npos) << warnings[0];
  }
  // What was reported is not reported again of the next wait.
  root.leader.on_mail(0, overdue("x"), 11s);
  root.leader.take(11s);
  const auto later = root.leader.take(20s).warnings;
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0].find("under this name"), std::string::npos) << later[0];
}

TEST(Overdue, WhoHasComeMeanwhileIsNotSaidToWaitElsewhere) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.leader.on_mail(0, report("x", 8), 0s);
  root.leader.on_mail(0, overdue("x"), 1s);
  root.leader.take(1s);
  root.leader.on_mail(1, elsewhere("x", ProcessSet(4)), 1s);
  root.leader.on_mail(1, report("x", 8), 1s);
  const auto warnings = root.leader.take(10s).warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].find("under this name"), std::string::npos) << warnings[0];
}

TEST(Overdue, AnswersClimb) {
  LeaderUnderTest leader(five_nodes, 2);
  leader.leader.on_decision({.asked = {"x"}});
  EXPECT_EQ(leader.leader.take(1s).decisions.at(0).asked, std::vector<std::string>{"x"});
  leader.leader.on_mail(1, elsewhere("x", ProcessSet(4)), 1s);
  leader.leader.on_up(3, {.elsewhere = {{"x", 5, ProcessSet(6)}}}, 1s);
  EXPECT_EQ(leader.leader.take(1s).up.elsewhere,
            (std::vector<Elsewhere>{{"x", 3, ProcessSet(4)}, {"x", 5, ProcessSet(6)}}));
}

TEST(Overdue, QuestionsAreCut) {
  constexpr int kNames = 4000;
  LeaderUnderTest root(two_nodes_of_two, 0);
  for (int n = 0; n < kNames; ++n) {
    const std::string name = std::string(1000, 'n') + std::to_string(n);
    root.leader.on_mail(0, report(name, 8), 0s);
    root.leader.on_mail(0, overdue(name), 1s);
  }
  std::size_t asked = 0;
  for (auto output = root.leader.take(1s); !output.decisions.empty();
       output = root.leader.take(1s)) {
    for (const Decision& decision : output.decisions) {
      EXPECT_LT(encode(decision).size(), kDecisionBytes);
      asked += decision.asked.size();
    }
  }
  EXPECT_EQ(asked, std::size_t{kNames});
}

constexpr Expiry kSoon{60s, 2s, false};

Mail expiring(const std::string& name) {
  Mail mail{.kind = MailKind::expiring, .name = name, .signature = {}, .location = {}};
  mail.expiry = kSoon;
  return mail;
}

// Four nodes: 0 has the children 1 and 2; 3 is below 2.
const Topology four_nodes{{{0}, {1}, {2, 3}, {4}}};

TEST(Expiring, TheRootAsksAndSaysWhatItHasHeard) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  root.leader.on_up(1, {.expiring = {{"g", 2, kSoon}}}, 10s);
  const LeaderOutput asks = root.leader.take(10s);
  ASSERT_EQ(asks.decisions.size(), 1u);
  EXPECT_EQ(asks.decisions[0].asked, std::vector<std::string>{"g"});
  EXPECT_EQ(root.leader.deadline(), Duration(12s));
  root.leader.on_up(1, {.presence = {{"g", {2}, {3}, {"rank 3 is stopped"}, true}}}, 10s);
  EXPECT_EQ(root.leader.deadline(), Duration(12s)) << "an answer makes no warning";
  EXPECT_EQ(root.leader.presence_of("g"),
            (Presence{"g", {2}, {0, 1, 3}, {"", "", "rank 3 is stopped"}}));
  const LeaderOutput ends = root.leader.take(12s);
  EXPECT_TRUE(ends.warnings.empty());
  ASSERT_EQ(ends.expired.size(), 1u);
  EXPECT_EQ(ends.expired[0].expiring.rank, 2);
  EXPECT_EQ(ends.expired[0].presence.missing, (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(root.leader.take(13s).expired.empty());
}

TEST(Expiring, NothingExpiresThatWasDecidedMeanwhile) {
  LeaderUnderTest root(two_nodes_of_two, 0);
  for (const int r : {0, 1}) root.leader.on_mail(r, report("g", 8), 9s);
  root.leader.on_mail(0, expiring("g"), 10s);
  root.leader.take(10s);
  root.leader.on_up(1, {.reports = {{"g", {{shaped(8), {}}}}}}, 11s);
  EXPECT_EQ(root.leader.take(11s).decisions.size(), 1u);
  EXPECT_EQ(root.leader.deadline(), std::nullopt);
  EXPECT_TRUE(root.leader.take(20s).expired.empty());
}

TEST(Expiring, LeadersAnswerAndPassOn) {
  LeaderUnderTest leader(four_nodes, 2);
  leader.leader.on_mail(1, report("g", 8), 0s);
  leader.leader.on_mail(1, expiring("g"), 10s);
  leader.leader.on_up(3, {.expiring = {{"g", 4, kSoon}}}, 10s);
  EXPECT_EQ(leader.leader.take(10s).up.expiring,
            (std::vector<Expiring>{{"g", 3, kSoon}, {"g", 4, kSoon}}));
  leader.leader.on_decision({.asked = {"g", "h"}});
  const Presence below{"g", {4}, {}, {}, true};
  leader.leader.on_up(3, {.presence = {below}}, 11s);
  const Up up = leader.leader.take(11s).up;
  EXPECT_EQ(up.presence,
            (std::vector<Presence>{{"g", {3}, {2}, {}, true}, {"h", {}, {2, 3}, {}, true}, below}));
  EXPECT_EQ(leader.leader.deadline(), std::nullopt);
}

}  // namespace

}  // namespace hora::internal
