#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Numbers = std::vector<double>;

class Adasum : public Conformance {
 protected:
  static constexpr const char* kNone = "nodes of threads as ranks have no Adasum between them";
  int nodes() { return context().cross_size(); }
  bool has_adasum() { return !on_device() || nodes() == 1; }

  /// The result on all ranks when each rank brings `own`; in the type T.
  template <class T>
  Numbers result_of(const Numbers& own, const std::string& name, ProcessSet set = kWorld) {
    Elements<T> elements;
    for (const double number : own) elements.push_back(static_cast<T>(number));
    allreduce(world(), view_of<T>(elements, {static_cast<std::int64_t>(own.size())}),
              {.name = name, .op = ReduceOp::adasum, .process_set = set});
    Numbers result;
    for (const T element : elements) result.push_back(static_cast<double>(element));
    return result;
  }
};

template <class T>
void expect_near(const Numbers& actual, const Numbers& expected) {
  double longest = 0;
  for (const double number : expected) longest = std::max(longest, std::abs(number));
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 8 * epsilon_of<T>() * longest)
        << name_of(data_type_of<T>) << i;
  }
}

Numbers numbers(std::size_t count) {
  Numbers result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<double>(i % 7) - 3;
  return result;
}

/// Ranks of one node count as one, with their sum.
TEST_F(Adasum, OfParallelGradientsIsTheirAverage) {
  if (!has_adasum()) GTEST_SKIP() << kNone;
  for_each_float([&]<class T>() {
    for (const std::size_t count : {std::size_t{17}, std::size_t{4913}}) {
      Numbers own(count, 0.0);
      if (context().local_rank() == 0) own = numbers(count);
      for (int round = 0; round < 2; ++round) {
        expect_near<T>(result_of<T>(own, "x" + std::to_string(count)), numbers(count));
      }
    }
  });
}

TEST_F(Adasum, OfOrthogonalGradientsIsTheirSum) {
  if (!has_adasum()) GTEST_SKIP() << kNone;
  const std::size_t count = 1000;
  for_each_float([&]<class T>() {
    Numbers own(count, 0.0);
    const auto all = numbers(count);
    if (context().local_rank() == 0) {
      for (auto i = static_cast<std::size_t>(context().cross_rank()); i < count;
           i += static_cast<std::size_t>(nodes())) {
        own[i] = all[i];
      }
    }
    expect_near<T>(result_of<T>(own, "x"), all);
  });
}

TEST_F(Adasum, OfTwoNodesIsTheFormula) {
  if (!has_adasum()) GTEST_SKIP() << kNone;
  const auto own_on = [&](int node) {
    Numbers result = numbers(100);
    for (std::size_t i = 0; i < result.size(); ++i)
      result[i] += node == 0 ? 1.0 : static_cast<double>(i % 3) * 0.5;
    return result;
  };
  const Numbers a = own_on(0), b = nodes() == 2 ? own_on(1) : a;
  const auto dot = [](const Numbers& x, const Numbers& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  Numbers expected;
  for (std::size_t i = 0; i < a.size(); ++i) {
    expected.push_back((1 - dot(a, b) / (2 * dot(a, a))) * a[i] +
                       (1 - dot(a, b) / (2 * dot(b, b))) * b[i]);
  }
  const bool brings = context().local_rank() == 0;
  const int node = nodes() == 2 ? context().cross_rank() : 0;
  const auto result = result_of<double>(brings ? own_on(node) : Numbers(a.size(), 0.0), "x");
  expect_near<double>(result, expected);
}

TEST_F(Adasum, OnEvenAndOddRanks) {
  if (!has_adasum()) GTEST_SKIP() << kNone;
  const ProcessSet set = add_even_and_odd();
  // Equal on all of the set's nodes, whichever ranks are on them: a sum over each node of shares.
  int on_own_node = 0;
  for (const int r : ranks_of(context(), set)) {
    const auto& node = context().ranks_of_node(context().cross_rank());
    on_own_node += static_cast<int>(std::count(node.begin(), node.end(), r));
  }
  Numbers own = numbers(50);
  for (double& number : own) number *= 12.0 / on_own_node;  // 1 to 4 ranks: whole numbers
  Numbers expected = numbers(50);
  for (double& number : expected) number *= 12.0;
  expect_near<float>(result_of<float>(own, "x", set), expected);
  barrier(world());
}

}  // namespace
}  // namespace hora::internal::test
