#include <algorithm>
#include <numeric>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

class Allgather : public Conformance {
 protected:
  /// Rows of every rank of the world; `rows_of(r)` of them, each of the shape `row`.
  template <class T>
  void expect_right(const std::string& name, const Shape& row,
                    const std::function<std::int64_t(int)>& rows_of, ProcessSet set = kWorld) {
    SCOPED_TRACE(name + " of " + std::string(name_of(data_type_of<T>)));
    Elements<T> expected, own;
    std::vector<std::int64_t> rows;
    for (const int r : ranks_of(context(), set)) {
      rows.push_back(rows_of(r));
      const auto theirs = input<T>(r, rows_of(r) * count_of(row), row.size());
      expected.insert(expected.end(), theirs.begin(), theirs.end());
      if (r == rank()) own = theirs;
    }
    Shape shape = row;
    shape.insert(shape.begin(), rows_of(rank()));
    const auto before = own;
    const Result result =
        allgather(world(), view_of<T>(own, shape), {.name = name, .process_set = set});
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    EXPECT_EQ(result.shape(), shape);
    EXPECT_EQ(result.rows(), rows);
    EXPECT_EQ(result.view().device, where());
    EXPECT_EQ(elements_of<T>(result), expected);
    EXPECT_EQ(own, before) << "the input is read only";
  }
};

TEST_F(Allgather, EveryTypeAndShapeGivesTheRanksSlicesInOrder) {
  for_each_type([&]<class T>() {
    for (int round = 0; round < 2; ++round) {  // new name, known name
      expect_right<T>("one", {}, [](int) { return 17; });
      expect_right<T>("two", {17}, [](int) { return 17; });
      expect_right<T>("three", {17, 17}, [](int) { return 17; });
    }
  });
}

TEST_F(Allgather, TheFirstDimensionMayDifferAndBeEmpty) {
  for_each_type([&]<class T>() {
    expect_right<T>("growing", {17}, [](int r) { return 1 + 5 * r; });
    expect_right<T>("shrinking", {17, 3}, [&](int r) { return 17 * (size() - 1 - r); });
    expect_right<T>("one rank alone", {17}, [&](int r) { return r == size() - 1 ? 17 : 0; });
    expect_right<T>("growing", {17}, [&](int r) { return 30 * (size() - r); });
    expect_right<T>("none", {17}, [](int) { return 0; });
    expect_right<T>("rows of nothing", {0, 3}, [](int r) { return r + 1; });
  });
}

TEST_F(Allgather, AScalarIsARow) {
  std::int32_t own = 10 + rank();
  const Result result = allgather(world(), placed(own), {.name = "scalar"});
  ASSERT_EQ(result.shape(), Shape{size()});
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(elements_of<std::int32_t>(result)[static_cast<std::size_t>(r)], 10 + r);
  }
}

TEST_F(Allgather, OutOfABuffer) {
  const Buffer buffer(context(), 4913 * sizeof(double), where());
  const TensorView inside{buffer.data(), DataType::float64, {17, 17, 17}, where()};
  here().write(inside, std::vector(4913, 1.5 * rank()));
  const Result result = allgather(world(), inside, {.name = "inside"});
  const auto elements = elements_of<double>(result);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    ASSERT_EQ(elements[i], 1.5 * static_cast<double>(i / 4913));
  }
}

TEST_F(Allgather, ManyInFlightInEveryOrder) {
  constexpr std::size_t kTensors = 40;
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int round = 0; round < 3; ++round) {
    const auto rows_of = [&](std::size_t t, int r) {
      return static_cast<std::int64_t>((t * 13 + static_cast<std::size_t>(r * 7 + round)) % 50);
    };
    std::vector<Elements<float>> own(kTensors);
    std::vector<Placed> tensors(kTensors);
    std::vector<ResultHandle> handles(kTensors);
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      own[t] = input<float>(rank(), rows_of(t, rank()) * 17, t);
      tensors[t] = view_of<float>(own[t], {rows_of(t, rank()), 17});
      handles[t] = allgather_async(world(), tensors[t], {.name = "tensor" + std::to_string(t)});
    }
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      Elements<float> expected;
      for (int r = 0; r < size(); ++r) {
        const auto theirs = input<float>(r, rows_of(t, r) * 17, t);
        expected.insert(expected.end(), theirs.begin(), theirs.end());
      }
      ASSERT_EQ(elements_of<float>(handles[t].wait()), expected) << "tensor " << t;
    }
  }
}

TEST_F(Allgather, OnEvenAndOddRanks) {
  const ProcessSet set = add_even_and_odd();
  for_each_type([&]<class T>() {
    expect_right<T>(
        "x", {17}, [](int r) { return 17 + r; }, set);
    expect_right<T>("x", {17}, [](int r) { return 17 - r; });
  });
  barrier(world());
}

TEST_F(Allgather, DisagreementsAreTheSameErrorOnEveryRank) {
  std::vector<float> floats(30, 1.0F);
  std::vector<std::int16_t> shorts(30, 1);
  const auto right = [&](const std::string& name) {
    const Result all = allgather(world(), placed(floats.data(), Shape{5, 6}), {.name = name});
    EXPECT_EQ(all.shape(), (Shape{5 * size(), 6}));
  };
  const auto expect = [&](std::vector<std::string> words, TensorView of_odd) {
    expect_disagreement({std::move(words),
                         [&](const std::string& name, bool odd) {
                           const Placed usual = placed(floats.data(), Shape{5, 6});
                           (void)allgather(world(), odd ? of_odd : TensorView(usual),
                                           {.name = name});
                         }},
                        right);
  };
  expect({"type", "float32 [*, 6]", "int16 [*, 6]"}, placed(shorts.data(), Shape{5, 6}));
  expect({"shape", "[*, 6]", "[*, 3]"}, placed(floats.data(), Shape{10, 3}));
  expect({"number of dimensions", "[*, 6]", "[*, 2, 3]"}, placed(floats.data(), Shape{5, 2, 3}));
  expect({"number of dimensions", "[*, 6]", "[*]"}, placed(floats.data(), 30));
}

// A rank that shares its node finds this where it submits, one alone when all sizes are known.
TEST_F(Allgather, MoreThanThereIsMemoryFailsAlone) {
  if (on_device()) GTEST_SKIP() << "a fake device has no less memory than is asked for";
  if (!world().is_homogeneous()) return;
  float memory[17] = {};
  for (const std::int64_t bytes : {std::int64_t{1} << 44, std::int64_t{1} << 48}) {
    expect_error(ErrorCode::out_of_memory,
                 [&] { (void)allgather(world(), view(memory, bytes / 4), {.name = "claimed"}); });
    const Result all = allgather(world(), view(memory, 17), {.name = "claimed"});
    EXPECT_EQ(all.shape(), Shape{17 * size()});
  }
}

TEST_F(Allgather, ResultsOutliveTheirSuccessors) {
  std::vector<Result> results;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int32_t> own(17, round * 10 + rank());
    results.push_back(allgather(world(), placed(own.data(), 17), {.name = "kept"}));
  }
  for (int round = 0; round < 20; ++round) {
    const auto values = elements_of<std::int32_t>(results[static_cast<std::size_t>(round)]);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], round * 10 + static_cast<int>(i / 17));
    }
  }
  expect_error(ErrorCode::invalid_argument, [&] { (void)results.front().values<float>(); });
  expect_error(ErrorCode::invalid_use, [] { (void)Result().shape(); });
}

}  // namespace
}  // namespace hora::internal::test
