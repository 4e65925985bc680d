#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

class Alltoall : public Conformance {
 protected:
  /// Rows that rank `from` sends to rank `to`.
  using Splits = std::function<std::int64_t(int from, int to)>;

  std::vector<std::int64_t> splits_of(int from, const std::vector<int>& ranks,
                                      const Splits& split) {
    std::vector<std::int64_t> splits;
    for (const int to : ranks) splits.push_back(split(from, to));
    return splits;
  }

  /// What `from` sends to this rank, out of all that it sends.
  template <class T>
  Elements<T> sent_to_me(int from, const std::vector<int>& ranks, const Splits& split,
                         std::int64_t row) {
    const auto splits = splits_of(from, ranks, split);
    const auto position = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    const auto all = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
    const auto before = std::accumulate(splits.begin(), splits.begin() + position, std::int64_t{0});
    const auto theirs = input<T>(from, all * row, 0);
    const auto begin = theirs.begin() + before * row;
    return {begin, begin + splits[static_cast<std::size_t>(position)] * row};
  }

  template <class T>
  void expect_right(const std::string& name, const Shape& row, const Splits& split,
                    ProcessSet set = kWorld, bool splits_given = true) {
    SCOPED_TRACE(name + " of " + std::string(name_of(data_type_of<T>)));
    const auto ranks = ranks_of(context(), set);
    Elements<T> expected;
    std::vector<std::int64_t> rows;
    for (const int from : ranks) {
      const auto theirs = sent_to_me<T>(from, ranks, split, count_of(row));
      expected.insert(expected.end(), theirs.begin(), theirs.end());
      rows.push_back(split(from, rank()));
    }
    const auto splits = splits_of(rank(), ranks, split);
    Shape shape = row;
    shape.insert(shape.begin(), std::accumulate(splits.begin(), splits.end(), std::int64_t{0}));
    auto own = input<T>(rank(), count_of(shape), 0);
    const auto before = own;
    AlltoallOptions options{.name = name, .process_set = set};
    if (splits_given) options.splits = splits;
    const Result result = alltoall(world(), view_of<T>(own, shape), options);
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    EXPECT_EQ(result.shape(), shape);
    EXPECT_EQ(result.rows(), rows);
    EXPECT_EQ(result.view().device, where());
    EXPECT_EQ(elements_of<T>(result), expected);
    EXPECT_EQ(own, before) << "the input is read only";
  }
};

TEST_F(Alltoall, UnevenSplitsOfEveryTypeAndShape) {
  const auto uneven = [](int from, int to) { return 1 + from + 2 * to; };
  for_each_type([&]<class T>() {
    for (int round = 0; round < 2; ++round) {  // new name, known name
      expect_right<T>("one", {}, uneven);
      expect_right<T>("two", {17}, uneven);
      expect_right<T>("three", {17, 17}, uneven);
    }
  });
}

TEST_F(Alltoall, EqualSplitsAreTheDefault) {
  for_each_type([&]<class T>() {
    expect_right<T>(
        "equal", {17}, [](int, int) { return 17; }, kWorld, false);
    expect_right<T>(
        "per sender", {17}, [](int from, int) { return 3 * from; }, kWorld, false);
  });
}

TEST_F(Alltoall, SplitsMayBeZero) {
  for_each_type([&]<class T>() {
    expect_right<T>("to the last", {17}, [&](int, int to) { return to == size() - 1 ? 17 : 0; });
    expect_right<T>("from the first", {17}, [](int from, int) { return from == 0 ? 17 : 0; });
    expect_right<T>("to oneself", {17}, [](int from, int to) { return from == to ? 17 : 0; });
    expect_right<T>("to no rank", {17}, [](int, int) { return 0; });
    expect_right<T>("rows of nothing", {0}, [](int from, int to) { return from + to; });
  });
}

TEST_F(Alltoall, SplitsMayChangeFromCallToCall) {
  for (int round = 0; round < 6; ++round) {
    expect_right<float>("x", {17}, [&](int from, int to) { return (from * 5 + to + round) % 7; });
  }
}

TEST_F(Alltoall, ManyInFlightInEveryOrder) {
  constexpr std::size_t kTensors = 30;
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Element of tensor t that `from` sends to `to`.
  const auto element = [](std::size_t t, int from, int to) {
    return static_cast<std::int32_t>(t) * 100 + from * 10 + to;
  };
  std::vector<std::vector<std::int32_t>> own(kTensors);
  std::vector<Placed> tensors(kTensors);
  std::vector<ResultHandle> handles(kTensors);
  std::shuffle(order.begin(), order.end(), own_random());
  for (const std::size_t t : order) {
    for (int to = 0; to < size(); ++to) own[t].push_back(element(t, rank(), to));
    tensors[t] = placed(own[t]);
    handles[t] = alltoall_async(world(), tensors[t], {.name = "tensor" + std::to_string(t)});
  }
  std::shuffle(order.begin(), order.end(), own_random());
  for (const std::size_t t : order) {
    const auto got = elements_of<std::int32_t>(handles[t].wait());
    for (int from = 0; from < size(); ++from) {
      ASSERT_EQ(got[static_cast<std::size_t>(from)], element(t, from, rank()));
    }
  }
}

TEST_F(Alltoall, OnEvenAndOddRanks) {
  const ProcessSet set = add_even_and_odd();
  const auto uneven = [](int from, int to) { return 2 + 3 * from + to; };
  for_each_type([&]<class T>() {
    expect_right<T>("x", {17}, uneven, set);
    expect_right<T>("x", {17}, uneven);
  });
  barrier(world());
}

TEST_F(Alltoall, DisagreementsAreTheSameErrorOnEveryRank) {
  std::vector<float> floats(288, 1.0F);
  std::vector<std::uint8_t> bytes(288, 1);
  const auto right = [&](const std::string& name) {
    const Result result = alltoall(world(), placed(floats.data(), Shape{12, 24}), {.name = name});
    EXPECT_EQ(result.shape(), (Shape{12, 24}));
  };
  const auto expect = [&](std::vector<std::string> words, TensorView of_odd) {
    expect_disagreement({std::move(words),
                         [&](const std::string& name, bool odd) {
                           const Placed usual = placed(floats.data(), Shape{12, 24});
                           (void)alltoall(world(), odd ? of_odd : TensorView(usual),
                                          {.name = name});
                         }},
                        right);
  };
  expect({"type", "float32", "uint8"}, placed(bytes.data(), Shape{12, 24}));
  expect({"shape", "[*, 24]", "[*, 12]"}, placed(floats.data(), Shape{24, 12}));
  expect({"number of dimensions", "[*, 24]", "[*, 2, 12]"},
         placed(floats.data(), Shape{12, 2, 12}));
}

TEST_F(Alltoall, SplitsThatDoNotFitAreRefusedAtOnce) {
  std::vector<float> values(static_cast<std::size_t>(3 * size()), 1.0F);
  const auto refused = [&](Shape shape, std::vector<std::int64_t> splits,
                           const std::string& why = {}) {
    expect_error(ErrorCode::invalid_argument, testing::HasSubstr(why), [&] {
      (void)alltoall(world(), placed(values.data(), shape), {.name = "x", .splits = splits});
    });
  };
  const auto ranks = static_cast<std::size_t>(size());
  const Shape fits = {3 * size()};
  std::vector<std::int64_t> splits(ranks, 3);
  const std::string rows = std::to_string(3 * size());
  splits.back() = 4;
  refused(fits, splits,
          "add up to " + std::to_string(3 * size() + 1) + " rows, and the tensor has " + rows);
  splits.back() = 2;
  refused(fits, splits);
  splits.back() = -3;
  refused(fits, splits, "split " + std::to_string(size() - 1) + " is -3 rows");
  splits.back() = std::numeric_limits<std::int64_t>::max();
  refused(fits, splits);
  refused(fits, std::vector<std::int64_t>(ranks + 1, 3));
  refused(fits, std::vector<std::int64_t>(ranks, 0));
  if (size() > 1) {
    refused(fits, std::vector<std::int64_t>(ranks - 1, 3));
    refused({2 * size() + 1}, {});  // no even division
  }
  refused({}, {});
  refused({}, std::vector<std::int64_t>(ranks, 1));
  const Result result = alltoall(world(), placed(values.data(), fits), {.name = "x"});
  EXPECT_EQ(result.rows(), std::vector<std::int64_t>(ranks, 3));
}

}  // namespace
}  // namespace hora::internal::test
