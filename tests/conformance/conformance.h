/// What the cases of the suite share: a world of their own each, and how errors are judged.
#pragma once

#include <gtest/gtest.h>
#include <hora/hora.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/tensors.h"
#include "tests/support/expect_error.h"

namespace hora::test {

/// Two ways to submit one tensor, of which one rank takes the odd one.
struct Disagreement {
  std::vector<std::string> words;  ///< of the error's text: both values, what differs
  /// A collective under this name, waited for. `odd`: as no other rank.
  std::function<void(const std::string& name, bool odd)> submit;
};

class Conformance : public testing::Test {
 protected:
  Conformance();

  /// For a submission: after a random pause of up to TEST_LONGEST_PAUSE microseconds, where that
  /// variable is set, so that ranks come in any order and at any time.
  const Context& world();
  /// For everything else.
  Context& context() { return context_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

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
  std::mt19937_64& own_random() { return own_random_; }

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

  Context context_;
  int rank_;
  int size_;
  std::mt19937_64 own_random_;
  std::chrono::microseconds longest_pause_;
};

template <class T>
Elements<T> elements_of(const Result& result) {
  EXPECT_EQ(result.type(), data_type_of<T>);
  const auto* first = reinterpret_cast<const typename Elements<T>::value_type*>(result.data());
  return {first, first + result.view().elements()};
}

}  // namespace hora::test
