/// Shared by the suite's cases: a world of their own each, and how errors are judged.
#pragma once

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/conformance/member.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {

/// Two ways to submit one tensor, of which one rank takes the odd one.
struct Disagreement {
  std::vector<std::string> words;  ///< of the error's text: both values, what differs
  /// A collective under this name, waited for. `odd`: as no other rank.
  std::function<void(const std::string& name, bool odd)> submit;
};

/// A case's body runs on every rank: on that of this process, or on a thread for each of its
/// several. What a case keeps is local to its body, for its object is one.
class Conformance : public testing::Test {
 protected:
  Conformance();
  void SetUp() override;
  void TearDown() override;
  void TestBody() override = 0;

  /// For a submission: after a random pause of up to TEST_LONGEST_PAUSE microseconds, where that
  /// variable is set, so that ranks come in any order and at any time.
  const Member& this_member();
  const Context& world() { return this_member().context; }
  /// For everything else.
  Context& context() { return here().context; }
  /// This rank, which the calling thread runs.
  static Member& here();
  int rank() const { return here().context.rank(); }
  int size() const { return here().context.size(); }
  bool on_device() const { return here().device != nullptr; }
  Device where() const { return on_device() ? here().context.device() : Device{}; }
  /// All ranks have called it; not by way of hora.
  void meet() { ranks_->meet(); }

  template <class T>
  Placed view_of(Elements<T>& elements, Shape shape) {
    Placed placed = here().placed(elements.data(), std::move(shape));
    return std::move(placed).as(data_type_of<T>);
  }
  template <class... Arguments>
  Placed placed(Arguments&&... arguments) {
    return here().placed(std::forward<Arguments>(arguments)...);
  }
  template <class T>
  Elements<T> elements_of(const Result& result) {
    return test::elements_of<T>(here(), result);
  }

  /// The elements that each rank of the world brings: the same on every rank.
  template <class T>
  std::vector<Elements<T>> inputs(std::int64_t count_by_rank, std::uint64_t salt) const {
    std::vector<Elements<T>> by_rank;
    for (int r = 0; r < size(); ++r) by_rank.push_back(input<T>(r, count_by_rank, salt));
    return by_rank;
  }
  template <class T>
  Elements<T> input(int of_rank, std::int64_t count, std::uint64_t salt) const {
    return random_elements<T>(count, generator_of(of_rank, salt));
  }
  /// Draws differently on every rank.
  std::mt19937_64& own_random() { return here().own_random; }

  /// Adds the sets of the even and of the odd ranks; gives the one that this rank is in.
  ProcessSet add_even_and_odd();

  /// Every rank in turn is the odd one: the same Error(mismatch) on all ranks, with the words, the
  /// name and the odd rank in its text, whether the name is new or in the cache; `right` then works
  /// under that name. With one rank there is none to disagree with, and nothing happens.
  void expect_disagreement(const Disagreement& about,
                           const std::function<void(const std::string& name)>& right);
  /// Collective: the ranks of the world have this very text.
  void expect_same_text(const std::string& text);

 private:
  static std::mt19937_64 generator_of(int rank, std::uint64_t salt);
  void expect_mismatch(const Disagreement& about, const std::string& name, int odd_rank);
  Member member(int index);
  void run_here(int index);

  std::chrono::microseconds longest_pause_;
  std::unique_ptr<Ranks> ranks_;
  std::optional<Member> first_;
  std::vector<std::jthread> others_;
};

}  // namespace hora::internal::test
