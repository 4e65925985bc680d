// Several tensors under one handle.
#include <array>
#include <chrono>

#include "tests/conformance/conformance.h"

namespace hora::test {
namespace {

using Groups = Conformance;

/// The tensors of one rank.
class Tensors {
 public:
  explicit Tensors(const Member& me) : me_(me) {}
  /// Of 1, 2, ... elements, each this rank's number.
  std::vector<TensorView> fresh_views() {
    placed_.clear();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i].assign(i + 1, static_cast<float>(me_.context.rank()));
      placed_.push_back(me_.placed(values_[i]));
    }
    return {placed_.begin(), placed_.end()};
  }
  void expect_all(float value) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      placed_[i].take_back();
      EXPECT_EQ(values_[i], std::vector<float>(i + 1, value)) << "tensor " << i;
    }
  }

 private:
  const Member& me_;
  std::array<std::vector<float>, 20> values_;
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
    Handles group = grouped_allreduce_async(world(), tensors.fresh_views(), {.op = ReduceOp::max});
    EXPECT_TRUE(group.valid());
    EXPECT_TRUE(group.wait_for(std::chrono::minutes(1)));
    EXPECT_TRUE(group.ready());
    group.wait();
    EXPECT_FALSE(group.valid());
    tensors.expect_all(static_cast<float>(size() - 1));
    expect_error(ErrorCode::invalid_use, [&] { group.wait(); });
  }
}

TEST_F(Groups, OnEvenAndOddRanks) {
  Tensors tensors(here());
  const auto set = add_even_and_odd();
  grouped_broadcast(world(), tensors.fresh_views(),
                    {.name = "x", .root = rank() % 2, .process_set = set});
  tensors.expect_all(static_cast<float>(rank() % 2));
  barrier(world());
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
  Handles group(std::move(handles));
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
    const Handles group = grouped_allreduce_async(world(), views, {.name = "y"});
  });
  taken.wait();
}

}  // namespace
}  // namespace hora::test
