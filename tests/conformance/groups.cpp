// Several tensors under one handle.
#include <array>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Groups = Conformance;

constexpr std::size_t kTensors = 20;

Shape shape(std::size_t i, std::int64_t rows) {
  return {rows, static_cast<std::int64_t>(i) + 1};
}

/// One rank's tensors. Tensor i: rows of i + 1 elements, each this rank's number. Views are of the
/// last call's tensors.
class Tensors {
 public:
  explicit Tensors(const Member& member, std::int64_t rows = 1) : me_(member), rows_(rows) {}
  std::vector<TensorView> fresh_views() {
    placed_.clear();
    for (std::size_t i = 0; i < kTensors; ++i) {
      values_[i].assign((i + 1) * static_cast<std::size_t>(rows_),
                        static_cast<float>(me_.context.rank()));
      placed_.push_back(me_.placed(values_[i].data(), shape(i, rows_)));
    }
    return {placed_.begin(), placed_.end()};
  }
  std::vector<ConstTensorView> views() {
    const auto writable = fresh_views();
    return {writable.begin(), writable.end()};
  }
  void expect_all(float value) {
    for (std::size_t i = 0; i < kTensors; ++i) {
      placed_[i].take_back();
      EXPECT_EQ(values_[i], std::vector<float>(i + 1, value)) << "tensor " << i;
    }
  }

 private:
  const Member& me_;
  std::int64_t rows_;
  std::array<std::vector<float>, kTensors> values_;
  std::vector<Placed> placed_;
};

TEST_F(Groups, AllreduceAndBroadcastOfAllUnderOneHandle) {
  Tensors tensors(here());
  const auto sum = static_cast<float>(size() * (size() - 1)) / 2.0F;
  for (int round = 0; round < 2; ++round) {  // new names, known names
    grouped_allreduce(world(), tensors.fresh_views(), {.name = "sum", .op = ReduceOp::sum});
    tensors.expect_all(sum);
    grouped_broadcast(world(), tensors.fresh_views(), {.name = "root", .root = size() - 1});
    tensors.expect_all(static_cast<float>(size() - 1));
    GroupHandle group =
        grouped_allreduce_async(world(), tensors.fresh_views(), {.op = ReduceOp::max});
    EXPECT_TRUE(group.valid());
    EXPECT_TRUE(group.wait_for(std::chrono::minutes(1)));
    EXPECT_TRUE(group.ready());
    group.wait();
    EXPECT_FALSE(group.valid());
    tensors.expect_all(static_cast<float>(size() - 1));
    expect_error(ErrorCode::invalid_use, [&] { group.wait(); });
  }
}

TEST_F(Groups, OfNothingAndOfHandlesOfOnesOwn) {
  Tensors tensors(here());
  grouped_allreduce(world(), std::span<const TensorView>{}, {.name = "none"});
  const auto views = tensors.fresh_views();
  std::vector<Handle> handles;
  handles.push_back(barrier_async(world()));
  for (const TensorView& each : views) {
    handles.push_back(allreduce_async(world(), each, {.op = ReduceOp::min}));
  }
  GroupHandle group(std::move(handles));
  group.synchronize();
  tensors.expect_all(0.0F);
}

TEST_F(Groups, OneThatDiffersIsTheErrorAndTheOthersAreRight) {
  if (size() == 1) GTEST_SKIP() << "there is none to disagree with";
  Tensors tensors(here());
  auto views = tensors.fresh_views();
  if (rank() == 0) views[7].shape = {4};
  const Error error = expect_error(ErrorCode::mismatch, [&] {
    grouped_allreduce(world(), views, {.name = "x", .op = ReduceOp::max});
  });
  EXPECT_EQ(error.tensor(), "x.7");
  expect_same_text(error.what());
  float another = 0.0F;
  float value = 1.0F;
  const Placed other = placed(another), tensor = placed(value);
  Handle taken = allreduce_async(world(), tensor, {.name = "y.3"});
  views.pop_back();
  views[7] = other;
  expect_error(ErrorCode::duplicate_name, [&] {
    const GroupHandle group = grouped_allreduce_async(world(), views, {.name = "y"});
  });
  taken.wait();
  barrier(world());  // a rank that left would be the error of those that still submit
}

class ResultGroups : public Conformance {
 protected:
  /// Each tensor has all ranks' values, `rows` rows a rank.
  void expect_ranks_in_order(const std::vector<Result>& results, std::int64_t rows) {
    ASSERT_EQ(results.size(), kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) {
      std::vector<float> expected;
      for (int r = 0; r < size(); ++r) {
        expected.insert(expected.end(), static_cast<std::size_t>(rows) * (i + 1),
                        static_cast<float>(r));
      }
      EXPECT_EQ(results[i].shape(), shape(i, rows * size())) << "tensor " << i;
      EXPECT_EQ(elements_of<float>(results[i]), expected) << "tensor " << i;
    }
  }
  void expect_own_row(const std::vector<Result>& results, float value) {
    ASSERT_EQ(results.size(), kTensors);
    for (std::size_t i = 0; i < kTensors; ++i) {
      EXPECT_EQ(results[i].shape(), shape(i, 1)) << "tensor " << i;
      EXPECT_EQ(elements_of<float>(results[i]), std::vector<float>(i + 1, value)) << "tensor " << i;
    }
  }
};

TEST_F(ResultGroups, GiveTheResultsInTheOrderOfTheTensors) {
  Tensors rows(here(), size());
  const auto sum = static_cast<float>(size() * (size() - 1)) / 2.0F;
  const std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 1);
  const auto expect = [&](const auto& views) {
    expect_ranks_in_order(grouped_allgather(world(), views, {.name = "all"}), size());
    expect_ranks_in_order(grouped_alltoall(world(), views, {.name = "exchanged"}), 1);
    expect_ranks_in_order(grouped_alltoall(world(), views, {.name = "exchanged", .splits = splits}),
                          1);
    expect_own_row(grouped_reduce_scatter(world(), views, {.name = "own", .op = ReduceOp::sum}),
                   sum);
    expect_ranks_in_order(grouped_allgather_async(world(), views).wait(), size());
    expect_ranks_in_order(grouped_alltoall_async(world(), views).wait(), 1);
    expect_own_row(grouped_reduce_scatter_async(world(), views, {.op = ReduceOp::min}).wait(),
                   0.0F);
  };
  expect(rows.views());  // new names, then known ones
  expect(rows.fresh_views());
}

TEST_F(ResultGroups, UnderOneHandle) {
  Tensors rows(here(), size()), more(here(), size());
  ResultGroupHandle group = grouped_allgather_async(world(), rows.views(), {.name = "all"});
  ResultGroupHandle other = grouped_alltoall_async(world(), more.views(), {.name = "exchanged"});
  EXPECT_TRUE(group.wait_for(std::chrono::minutes(1)));
  EXPECT_TRUE(group.ready());
  ResultGroupHandle moved = std::move(group);
  EXPECT_FALSE(group.valid());  // NOLINT: what moving leaves
  EXPECT_TRUE(moved.valid());
  expect_ranks_in_order(moved.synchronize(), size());
  EXPECT_FALSE(moved.valid());
  expect_error(ErrorCode::invalid_use, [&] { (void)moved.wait(); });
  expect_error(ErrorCode::invalid_use, [&] { (void)group.wait(); });
  expect_error(ErrorCode::invalid_use, [&] { (void)ResultGroupHandle().wait(); });
  expect_ranks_in_order(other.wait(nullptr), 1);
  ResultGroupHandle dropped = grouped_reduce_scatter_async(world(), rows.views(), {.name = "own"});
}

TEST_F(ResultGroups, OnEvenAndOddRanks) {
  Tensors rows(here(), size());
  const auto set = add_even_and_odd();
  const auto ranks = ranks_of(context(), set);
  const auto results = grouped_allgather(world(), rows.views(), {.name = "x", .process_set = set});
  ASSERT_EQ(results.size(), kTensors);
  for (const Result& each : results) {
    EXPECT_EQ(each.rows(), std::vector<std::int64_t>(ranks.size(), size()));
    EXPECT_EQ(elements_of<float>(each).front(), static_cast<float>(ranks.front()));
    EXPECT_EQ(elements_of<float>(each).back(), static_cast<float>(ranks.back()));
  }
  Tensors tensors(here());
  grouped_broadcast(world(), tensors.fresh_views(),
                    {.name = "root", .root = ranks.back(), .process_set = set});
  tensors.expect_all(static_cast<float>(ranks.back()));
  barrier(world());
}

TEST_F(ResultGroups, OfNothingAndOfHandlesOfOnesOwn) {
  Tensors rows(here(), size());
  EXPECT_TRUE(grouped_allgather(world(), std::span<const ConstTensorView>{}).empty());
  EXPECT_TRUE(grouped_alltoall(world(), std::span<const TensorView>{}).empty());
  EXPECT_TRUE(grouped_reduce_scatter(world(), std::span<const TensorView>{}).empty());
  std::vector<ResultHandle> handles;
  for (const ConstTensorView& each : rows.views()) {
    handles.push_back(allgather_async(world(), each));
  }
  ResultGroupHandle group(std::move(handles));
  expect_ranks_in_order(group.wait(), size());
}

TEST_F(ResultGroups, OneThatDiffersIsTheErrorAndTheNextGroupIsRight) {
  if (size() == 1) GTEST_SKIP() << "there is none to disagree with";
  Tensors rows(here(), size());
  auto views = rows.views();
  if (rank() == 0) views[7].shape = {size(), 2, 4};
  const Error error =
      expect_error(ErrorCode::mismatch, [&] { grouped_allgather(world(), views, {.name = "x"}); });
  EXPECT_EQ(error.tensor(), "x.7");
  expect_same_text(error.what());
  expect_ranks_in_order(grouped_allgather(world(), rows.views(), {.name = "x"}), size());
  views = rows.views();
  views[7].shape = {};  // a scalar cannot be divided
  const Error scalar = expect_error(ErrorCode::invalid_argument, [&] {
    (void)grouped_reduce_scatter_async(world(), views, {.name = "y"});
  });
  EXPECT_EQ(scalar.tensor(), "y.7");
  expect_own_row(grouped_reduce_scatter(world(), rows.views(), {.name = "y", .op = ReduceOp::max}),
                 static_cast<float>(size() - 1));
}

}  // namespace
}  // namespace hora::internal::test
