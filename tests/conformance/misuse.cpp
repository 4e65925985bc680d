// Errors that are alike in all families.
#include <algorithm>
#include <utility>

#include "tests/conformance/conformance.h"
#include "tests/conformance/family.h"

namespace hora::internal::test {
namespace {

class Misuse : public Conformance, public testing::WithParamInterface<Family> {
 protected:
  /// Waited for.
  void run(const std::string& name, ProcessSet set = kWorld) {
    GetParam().run(this_member(), name, set);
  }
  Started start(const std::string& name, ProcessSet set = kWorld) {
    return test::start(GetParam(), this_member(), name, set);
  }
  /// Both ways to submit throw at once.
  std::string expect_refused(ErrorCode code, const std::string& name, ProcessSet set = kWorld) {
    expect_error(code, [&] { run(name, set); });
    return expect_error(code, [&] { (void)start(name, set); }).what();
  }
};

TEST_P(Misuse, ADuplicateNameInFlightIsThrownWhereItIsSubmitted) {
  for (int round = 0; round < 2; ++round) {  // new name, known name
    Started first = start("twice");
    const std::string text = expect_refused(ErrorCode::duplicate_name, "twice");
    EXPECT_NE(text.find("\"twice\""), std::string::npos) << text;
    for (const Family& other : families()) {
      expect_error(ErrorCode::duplicate_name, [&] { other.run(this_member(), "twice", kWorld); });
    }
    run("another");
    wait(first);
    run("twice");
  }
}

TEST_P(Misuse, OneNameMayBeInFlightOnTwoSets) {
  const ProcessSet set = add_even_and_odd();
  Started of_world = start("x");
  Started of_set = start("x", set);
  expect_refused(ErrorCode::duplicate_name, "x");
  expect_refused(ErrorCode::duplicate_name, "x", set);
  wait(of_set);
  run("x", set);
  wait(of_world);
  barrier(world());
}

TEST_P(Misuse, AnUnknownProcessSetIsRefused) {
  expect_refused(ErrorCode::invalid_argument, "x", ProcessSet(7));
  run("x");
}

TEST_P(Misuse, OnlyMembersMaySubmit) {
  const ProcessSet first_alone = add_process_set(world(), {0});
  if (rank() == 0) {
    run("x", first_alone);
  } else {
    expect_refused(ErrorCode::invalid_argument, "x", first_alone);
  }
  run("x");
}

TEST_P(Misuse, ARemovedProcessSetIsRefused) {
  const ProcessSet set = add_even_and_odd();
  run("x", set);
  remove_process_set(world(), ProcessSet(1));
  if (size() > 1) remove_process_set(world(), ProcessSet(2));
  expect_refused(ErrorCode::invalid_argument, "x", set);
  run("x");
}

TEST_P(Misuse, AHandleIsWaitedForOnce) {
  Started handle = start("x");
  wait(handle);
  std::visit([](const auto& one) { EXPECT_FALSE(one.valid()); }, handle.handle);
  std::visit([](const auto& one) { EXPECT_TRUE(one.ready()); }, handle.handle);
  expect_error(ErrorCode::invalid_use, [&] { wait(handle); });
  Started moved_from = start("x");
  Started moved_to = std::move(moved_from);
  expect_error(ErrorCode::invalid_use, [&] { wait(moved_from); });
  wait(moved_to);
  run("x");
}

TEST_P(Misuse, ADroppedHandleHasWaited) {
  { const Started dropped = start("x"); }
  run("x");
}

TEST_P(Misuse, DifferingOperationsAreTheSameErrorOnEveryRank) {
  for (const Family& other : families()) {
    if (other.name <= GetParam().name) continue;  // each pair once
    SCOPED_TRACE("against " + other.name);
    expect_disagreement({{"operation", GetParam().name, other.name},
                         [&](const std::string& name, bool odd) {
                           odd ? other.run(this_member(), name, kWorld) : run(name);
                         }},
                        [&](const std::string& name) { run(name); });
  }
}

TEST_P(Misuse, TensorsThatDifferAreTheSameErrorOnEveryRank) {
  if (GetParam().name == "barrier") GTEST_SKIP() << "it has none";
  std::vector<float> floats(24, 1.0F);
  std::vector<std::int32_t> ints(24, 1);
  const auto expect = [&](std::vector<std::string> words, const Placed& of_odd) {
    const Placed usual = placed(floats.data(), Shape{12, 2});
    expect_disagreement({std::move(words),
                         [&](const std::string& name, bool odd) {
                           AnyHandle handle =
                               GetParam().start(this_member(), odd ? of_odd : usual, name, kWorld);
                           std::visit([](auto& one) { (void)one.wait(); }, handle);
                         }},
                        [&](const std::string& name) { run(name); });
  };
  expect({"type", "float32 [", "int32 ["}, placed(ints.data(), Shape{12, 2}));
  expect({"shape", ", 2]", ", 1]"}, placed(floats.data(), Shape{12, 1}));
  expect({"number of dimensions", ", 2]", ", 2, 1]"}, placed(floats.data(), Shape{12, 2, 1}));
}

TEST_P(Misuse, CallsAfterShutdownAreRefused) {
  run("x");
  context().shutdown();
  EXPECT_TRUE(context().is_shut_down());
  const std::string text = expect_refused(ErrorCode::shut_down, "x");
  EXPECT_NE(text.find("shutdown"), std::string::npos) << text;
  context().shutdown();  // again: nothing
}

TEST_P(Misuse, WhatAPeerNeverSubmitsBeforeItsShutdownFails) {
  if (size() == 1) return;
  run("known");
  if (rank() == size() - 1) {
    context().shutdown();
    return;
  }
  for (const char* name : {"never", "known"}) {
    Started handle;
    // The peer's departure may be known already when the second is submitted.
    expect_error(ErrorCode::shut_down, testing::HasSubstr("rank " + std::to_string(size() - 1)),
                 [&] {
                   handle = start(name);
                   wait(handle);
                 });
  }
}

TEST_P(Misuse, ShutdownWaitsForWhatIsInFlight) {
  Started handle = start("x");
  context().shutdown();
  wait(handle);
}

INSTANTIATE_TEST_SUITE_P(OfEvery, Misuse, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace hora::internal::test
