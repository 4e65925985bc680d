#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/support/reference/reference.h"

namespace hora::internal::test {
namespace {

class Adasum : public Conformance {
 protected:
  /// Element i of what a node of the set brings, by its place: its first rank brings it, the others
  /// zeros, for ranks of one node count as one, with their sum.
  using Gradient = std::function<double(std::size_t i, std::size_t node, std::size_t nodes)>;

  /// The first rank of each node that the set has ranks on.
  std::vector<int> bringing(ProcessSet set) {
    const auto ranks = ranks_of(context(), set);
    std::vector<int> first;
    for (int node = 0; node < context().cross_size(); ++node) {
      const auto found = std::ranges::find_first_of(ranks, context().ranks_of_node(node));
      if (found != ranks.end()) first.push_back(*found);
    }
    return first;
  }

  template <class T>
  void expect_adasum(const Gradient& gradient, std::size_t count, ProcessSet set,
                     const std::string& name) {
    const std::vector<int> from = bringing(set);
    std::vector<Numbers> by_node(from.size(), Numbers(count));
    Numbers own(count, 0.0);
    for (std::size_t node = 0; node < from.size(); ++node) {
      for (std::size_t i = 0; i < count; ++i) by_node[node][i] = gradient(i, node, from.size());
      if (rank() == from[node]) own = by_node[node];
    }
    const Numbers expected = adasum_of(by_node);
    const double longest = std::abs(
        *std::ranges::max_element(expected, {}, [](double number) { return std::abs(number); }));
    for (int round = 0; round < 2; ++round) {  // new name, known name
      Elements<T> elements;
      for (const double number : own) elements.push_back(static_cast<T>(number));
      allreduce(world(), view_of<T>(elements, {static_cast<std::int64_t>(count)}),
                {.name = name, .op = ReduceOp::adasum, .process_set = set});
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(static_cast<double>(elements[i]), expected[i], 8 * epsilon_of<T>() * longest)
            << name_of(data_type_of<T>) << " " << name << " " << i;
      }
    }
  }
};

/// The average of parallel gradients, the sum of orthogonal ones, and what is between.
TEST_F(Adasum, OfEachNodesGradientIsTheFormula) {
  if (on_device() && context().cross_size() > 1) {
    GTEST_SKIP() << "nodes of threads as ranks have no Adasum between them";
  }
  const auto number = [](std::size_t i) { return static_cast<double>(i % 7) - 3; };
  const auto parallel = [&](auto i, auto, auto) { return number(i); };
  const std::vector<std::tuple<std::string, std::size_t, Gradient>> cases{
      {"few", 17, parallel},
      {"parallel", 4913, parallel},
      {"orthogonal", 1000,
       [&](auto i, auto node, auto nodes) { return i % nodes == node ? number(i) : 0; }},
      {"others", 100, [&](auto i, auto node, auto) {
         return number(i) + (node == 0 ? 1.0 : static_cast<double>(i % (2 + node)) * 0.5);
       }}};
  for (const ProcessSet set : {kWorld, add_even_and_odd()}) {
    for_each_float([&]<class T>() {
      for (const auto& [name, count, gradient] : cases) {
        expect_adasum<T>(gradient, count, set, name);
      }
    });
  }
  barrier(world());
}

}  // namespace
}  // namespace hora::internal::test
