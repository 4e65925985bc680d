#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/conformance/conformance.h"
#include "tests/support/reference/expect_reduced.h"

namespace hora::internal::test {
namespace {

struct Piece {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
};

/// Of `rows` rows: the first rows % ranks pieces are one row longer.
Piece piece_of(std::int64_t rows, std::int64_t place, std::int64_t ranks) {
  const std::int64_t longer = rows % ranks;
  return {place * (rows / ranks) + std::min(place, longer),
          rows / ranks + (place < longer ? 1 : 0)};
}

class ReduceScatter : public Conformance {
 protected:
  template <class T>
  void expect_right(const Reduction& how, const std::string& name, const Shape& shape,
                    ProcessSet set = kWorld) {
    SCOPED_TRACE(name + " of " + std::string(name_of(data_type_of<T>)) + ", " +
                 std::string(name_of(how.op)));
    const std::int64_t count = count_of(shape);
    std::vector<Elements<T>> by_rank;
    for (const int r : ranks_of(context(), set))
      by_rank.push_back(input<T>(r, count, shape.size()));
    auto own = input<T>(rank(), count, shape.size());
    const auto before = own;
    const Result result = reduce_scatter(world(), view_of<T>(own, shape),
                                         {.name = name,
                                          .op = how.op,
                                          .process_set = set,
                                          .prescale = how.prescale,
                                          .postscale = how.postscale});
    const Piece piece = piece_of(shape.front(), rank_in(context(), set), size_of(context(), set));
    Shape of_piece = shape;
    of_piece.front() = piece.rows;
    EXPECT_EQ(result.shape(), of_piece);
    EXPECT_EQ(result.view().device, where());
    EXPECT_EQ(result.rows(), std::vector<std::int64_t>{piece.rows});
    const auto got = elements_of<T>(result);
    of_piece.front() = 1;
    const std::int64_t row = count_of(of_piece);
    expect_reduced<T>(how, by_rank, got.data(), static_cast<std::size_t>(piece.begin * row),
                      got.size());
    EXPECT_EQ(own, before) << "the input is read only";
  }
};

TEST_F(ReduceScatter, EveryTypeShapeAndReduction) {
  for_each_type([&]<class T>() {
    for (const ReduceOp op : kElementOps) {
      for (const Shape& shape : shapes_of_17()) {
        expect_right<T>({op}, std::string(name_of(op)) + std::to_string(shape.size()), shape);
      }
      expect_right<T>({op}, std::string(name_of(op)) + "1", {17});  // known name
    }
  });
}

TEST_F(ReduceScatter, AverageAndScalesOfEveryFloatType) {
  for_each_float([&]<class T>() {
    for (const Shape& shape : shapes_of_17()) {
      const std::string dimensions = std::to_string(shape.size());
      expect_right<T>({ReduceOp::average}, "average" + dimensions, shape);
      expect_right<T>({ReduceOp::sum, 0.7, 1.0}, "pre" + dimensions, shape);
      expect_right<T>({ReduceOp::sum, 1.0, -1.3}, "post" + dimensions, shape);
      expect_right<T>({ReduceOp::max, -0.5, 3.0}, "max" + dimensions, shape);
      expect_right<T>({ReduceOp::average, 1.25, 0.3}, "both" + dimensions, shape);
    }
  });
}

TEST_F(ReduceScatter, AnyNumberOfRowsIsCutIntoPieces) {
  for_each_type([&]<class T>() {
    for (std::int64_t rows = 0; rows <= 2 * size() + 1; ++rows) {
      expect_right<T>({ReduceOp::sum}, "rows" + std::to_string(rows), {rows, 17});
    }
    expect_right<T>({ReduceOp::sum}, "rows of nothing", {17, 0});
  });
}

TEST_F(ReduceScatter, HasTheBitsOfAllreduce) {
  if (on_device()) GTEST_SKIP() << "NCCL sums in orders of its own";
  for (const std::int64_t rows : {17, 20000}) {
    const auto values = random_elements<float>(rows, own_random());
    auto all = values;
    allreduce(world(), view_of<float>(all, {rows}), {.name = "all"});
    auto own = values;
    const Result result = reduce_scatter(world(), view_of<float>(own, {rows}), {.name = "own"});
    const Piece piece = piece_of(rows, rank(), size());
    ASSERT_EQ(result.shape(), Shape{piece.rows});
    EXPECT_EQ(std::memcmp(result.data(), all.data() + piece.begin,
                          static_cast<std::size_t>(piece.rows) * sizeof(float)),
              0);
  }
}

TEST_F(ReduceScatter, ManyInFlightInEveryOrder) {
  constexpr std::size_t kTensors = 40;
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<Elements<std::int32_t>>> by_rank(kTensors);
    std::vector<Placed> tensors(kTensors);
    std::vector<ResultHandle> handles(kTensors);
    const auto rows = [](std::size_t t) { return static_cast<std::int64_t>(t * 37 % 300); };
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      by_rank[t] = inputs<std::int32_t>(rows(t), t);
      auto& own = by_rank[t][static_cast<std::size_t>(rank())];
      tensors[t] = view_of<std::int32_t>(own, {rows(t)});
      handles[t] = reduce_scatter_async(world(), tensors[t],
                                        {.name = std::to_string(t), .op = ReduceOp::sum});
    }
    std::shuffle(order.begin(), order.end(), own_random());
    for (const std::size_t t : order) {
      const auto got = elements_of<std::int32_t>(handles[t].wait());
      const Piece piece = piece_of(rows(t), rank(), size());
      ASSERT_EQ(static_cast<std::int64_t>(got.size()), piece.rows);
      expect_reduced<std::int32_t>({}, by_rank[t], got.data(),
                                   static_cast<std::size_t>(piece.begin), got.size());
    }
  }
}

TEST_F(ReduceScatter, OnEvenAndOddRanks) {
  const ProcessSet set = add_even_and_odd();
  for_each_type([&]<class T>() {
    expect_right<T>({ReduceOp::sum}, "x", {17, 17}, set);
    expect_right<T>({ReduceOp::sum}, "x", {17, 17});
    if constexpr (is_float<T>) expect_right<T>({ReduceOp::average}, "average", {17, 17}, set);
  });
  barrier(world());
}

TEST_F(ReduceScatter, DisagreementsAreTheSameErrorOnEveryRank) {
  std::vector<float> floats(24, 1.0F);
  std::vector<double> doubles(24, 1.0);
  const Placed usual = placed(floats.data(), Shape{12, 2});
  const ReduceScatterOptions sum{.op = ReduceOp::sum};
  const auto right = [&](const std::string& name) {
    const auto got =
        elements_of<float>(reduce_scatter(world(), usual, {.name = name, .op = ReduceOp::sum}));
    EXPECT_EQ(got, std::vector<float>(got.size(), static_cast<float>(size())));
  };
  const auto expect = [&](std::vector<std::string> words, TensorView tensor_of_odd,
                          ReduceScatterOptions options_of_odd) {
    expect_disagreement({std::move(words),
                         [&](const std::string& name, bool odd) {
                           ReduceScatterOptions options = odd ? options_of_odd : sum;
                           options.name = name;
                           (void)reduce_scatter(world(), odd ? tensor_of_odd : TensorView(usual),
                                                options);
                         }},
                        right);
  };
  expect({"type", "float32", "float64"}, placed(doubles.data(), Shape{12, 2}), sum);
  expect({"shape", "[12, 2]", "[11, 2]"}, placed(floats.data(), Shape{11, 2}), sum);
  expect({"shape", "[12, 2]", "[8, 3]"}, placed(floats.data(), Shape{8, 3}), sum);
  expect({"number of dimensions", "[12, 2]", "[24]"}, placed(floats.data(), 24), sum);
  expect({"reduction", "sum", "average"}, usual, {.op = ReduceOp::average});
  expect({"prescale", "prescale 2"}, usual, {.op = ReduceOp::sum, .prescale = 2.0});
  expect({"postscale", "postscale 0.25"}, usual, {.op = ReduceOp::sum, .postscale = 0.25});
}

TEST_F(ReduceScatter, ScalarsAdasumAndOtherNonsenseAreRefusedAtOnce) {
  std::vector<float> floats(17, 1.0F);
  std::vector<std::int32_t> ints(17, 1);
  const auto refused = [&](const TensorView& tensor, ReduceScatterOptions options) {
    options.name = "x";
    expect_error(ErrorCode::invalid_argument,
                 [&] { (void)reduce_scatter(world(), tensor, options); });
  };
  refused(view(floats.data(), Shape{}), {});
  refused(view(floats.data(), 17), {.op = ReduceOp::adasum});
  refused(view(ints.data(), 17), {.op = ReduceOp::average});
  refused(view(ints.data(), 17), {.op = ReduceOp::sum, .prescale = 0.5});
  expect_right<float>({ReduceOp::sum}, "x", {17});
}

}  // namespace
}  // namespace hora::internal::test
