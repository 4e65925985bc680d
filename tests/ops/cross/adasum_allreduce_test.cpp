#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>

#include "ops/cross/cross_group.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::MessageNetwork;
using test::Numbers;

using Bytes = std::vector<std::byte>;

/// Tensors in one staging, each from a multiple of 64 bytes on, as in a unit.
struct Layout {
  Layout(DataType element_type, std::vector<std::size_t> element_counts)
      : type(element_type), counts(std::move(element_counts)) {
    for (const std::size_t count : counts) {
      ranges.push_back({bytes, count * size_of(type)});
      bytes += align_up(ranges.back().bytes);
    }
  }
  Bytes tensor(const Bytes& staging, std::size_t t) const {
    const auto begin = staging.begin() + static_cast<std::ptrdiff_t>(ranges[t].begin);
    return {begin, begin + static_cast<std::ptrdiff_t>(ranges[t].bytes)};
  }
  /// `tensors`: the values of each.
  Bytes staging(const std::vector<Numbers>& tensors) const {
    Bytes result(bytes, std::byte{0x3c});
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Bytes values = test::to_bytes(type, tensors[t]);
      std::copy(values.begin(), values.end(),
                result.begin() + static_cast<std::ptrdiff_t>(ranges[t].begin));
    }
    return result;
  }

  DataType type;
  std::vector<std::size_t> counts;
  std::vector<Range> ranges;
  std::size_t bytes = 0;
};

/// Random in (low, high).
Numbers random_numbers(std::size_t count, double low, double high, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(low, high);
  Numbers numbers(count);
  for (double& number : numbers) number = uniform(random);
  return numbers;
}

/// Runs one operation for each layout, all at once; [operation][member] is what is in the staging.
std::vector<std::vector<Bytes>> run(const std::vector<Layout>& layouts,
                                    std::vector<std::vector<Bytes>> stagings,
                                    std::mt19937_64& random,
                                    std::uint64_t first_sequence = CrossResources::kWindow - 1) {
  const std::size_t members = stagings.front().size();
  MessageNetwork network(static_cast<int>(members), random());
  HostSpace space;
  std::vector<std::unique_ptr<CrossResources>> resources;
  std::vector<Completion> open;
  for (std::size_t member = 0; member < members; ++member) {
    resources.push_back(
        std::make_unique<CrossResources>(network.member(static_cast<int>(member)), space));
    for (std::size_t number = 0; number < layouts.size(); ++number) {
      open.push_back(start_adasum(*resources.back(), layouts[number].type, stagings[number][member],
                                  layouts[number].ranges, first_sequence + number));
    }
  }
  for (std::size_t idle = 0; !open.empty();) {
    const auto which = open.begin() + static_cast<std::ptrdiff_t>(random() % open.size());
    if (random() % 2 == 0 && which->poll()) {
      open.erase(which);
    } else if (!network.deliver_one() && ++idle > 100000) {
      throw std::logic_error("deadlock");
    }
  }
  EXPECT_EQ(network.left_over(), 0U);
  return stagings;
}

class AdasumAllreduceTest : public testing::TestWithParam<int> {
 protected:
  std::size_t members() const { return static_cast<std::size_t>(GetParam()); }
  int levels() const {
    return static_cast<int>(std::bit_width(members() - 1));  // of the tree
  }
  /// [member], of these tensors: [tensor][member].
  std::vector<Bytes> stagings(const Layout& layout,
                              const std::vector<std::vector<Numbers>>& tensors) const {
    std::vector<Bytes> result;
    for (std::size_t member = 0; member < members(); ++member) {
      std::vector<Numbers> of_member;
      for (const auto& tensor : tensors) of_member.push_back(tensor[member]);
      result.push_back(layout.staging(of_member));
    }
    return result;
  }
  static void expect_equal_everywhere(const std::vector<Bytes>& results) {
    for (std::size_t member = 1; member < results.size(); ++member) {
      EXPECT_TRUE(results[member] == results[0]) << "member " << member;
    }
  }
  /// Random vectors of members, of a kind whose factors are not near their poles: well inside one
  /// quadrant, or long and of random directions. Tensors of different magnitude.
  std::vector<std::vector<Numbers>> random_tensors(const Layout& layout,
                                                   std::mt19937_64& random) const {
    std::vector<std::vector<Numbers>> tensors;
    for (std::size_t t = 0; t < layout.counts.size(); ++t) {
      const double scale = std::exp2(-static_cast<double>(t % 4));
      const double low = layout.counts[t] < 64 ? 0.5 : -1;
      auto& tensor = tensors.emplace_back();
      for (std::size_t member = 0; member < members(); ++member) {
        tensor.push_back(random_numbers(layout.counts[t], low * scale, scale, random));
      }
    }
    return tensors;
  }
  /// Each element within what each level rounds: three operations on at most the sum of the
  /// magnitudes, and once to the type. The tensors' errors go on through the factors.
  void expect_close(const Layout& layout, const std::vector<Bytes>& inputs,
                    const Bytes& result) const {
    for (std::size_t t = 0; t < layout.counts.size(); ++t) {
      std::vector<Numbers> vectors;
      double largest = 0;
      for (const Bytes& input : inputs) {
        vectors.push_back(test::to_numbers(layout.type, layout.tensor(input, t)));
        double of_member = 0;
        for (const double value : vectors.back())
          of_member = std::fmax(of_member, std::fabs(value));
        largest += of_member;
      }
      const Numbers expected = test::adasum_of(vectors);
      const Numbers actual = test::to_numbers(layout.type, layout.tensor(result, t));
      const double bound = 4 * levels() * test::unit_roundoff(layout.type) * largest;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], bound)
            << name_of(layout.type) << ", tensor " << t << ", element " << i;
      }
    }
  }
};

const std::vector<std::size_t> kCounts = {1, 0, 333, 5, 64, 1000, 0, 17};

TEST_P(AdasumAllreduceTest, IsTheSerialModelsAndTheSameEverywhere) {
  auto random = test::generator();
  for (const DataType type : test::kFloatTypes) {
    const Layout layout(type, kCounts);
    const auto inputs = stagings(layout, random_tensors(layout, random));
    const auto results = run({layout}, {inputs}, random)[0];
    expect_equal_everywhere(results);
    expect_close(layout, inputs, results[0]);
  }
}

TEST_P(AdasumAllreduceTest, ManyAtOnceGiveTheBitsOfOneAfterTheOther) {
  auto random = test::generator();
  std::vector<Layout> layouts;
  std::vector<std::vector<Bytes>> inputs;
  for (int number = 0; number < 12; ++number) {
    std::vector<std::size_t> counts;
    for (std::size_t t = random() % 4; t > 0; --t) counts.push_back(random() % 200);
    layouts.emplace_back(test::kFloatTypes[random() % 4], counts);
    inputs.push_back(stagings(layouts.back(), random_tensors(layouts.back(), random)));
  }
  const auto together = run(layouts, inputs, random);
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    SCOPED_TRACE(number);
    expect_equal_everywhere(together[number]);
    EXPECT_EQ(run({layouts[number]}, {inputs[number]}, random)[0], together[number]);
  }
}

INSTANTIATE_TEST_SUITE_P(Members, AdasumAllreduceTest, testing::Range(1, 10));

TEST(AdasumAllreduce, RefusesWhatCannotBeRight) {
  auto random = test::generator();
  MessageNetwork network(2, random());
  HostSpace space;
  CrossResources resources(network.member(0), space);
  alignas(64) std::byte staging[64] = {};
  const auto start = [&](DataType type, std::vector<Range> tensors) {
    static_cast<void>(start_adasum(resources, type, staging, std::move(tensors), 0));
  };
  EXPECT_THROW(start(DataType::int32, {{0, 64}}), Error);
  EXPECT_THROW(start(DataType::float32, {{0, 68}}), Error);
  EXPECT_THROW(start(DataType::float32, {{68, 0}}), Error);
  EXPECT_THROW(start(DataType::float32, {{60, 8}}), Error);
  EXPECT_THROW(start(DataType::float32, {{2, 4}}), Error);
  EXPECT_THROW(start(DataType::float32, {{0, 7}}), Error);
  EXPECT_NO_THROW(start(DataType::float32, {{0, 64}})) << "none of them took the sequence number";
}

}  // namespace
}  // namespace hora::internal
