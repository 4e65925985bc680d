#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/conformance/family.h"
#include "tests/support/reference/expect_reduced.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class Join : public Conformance {
 protected:
  /// The ranks of `set` but `first` reduce meanwhile, each bringing its rank + 1.
  void expect_reduced_without(int first, ProcessSet set, const std::string& name) {
    const auto members = ranks_of(context(), set);
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      std::optional<double> expected;
      for (const int r : members) {
        if (r == first && members.size() > 1) continue;
        expected = expected ? combined_numbers(op, *expected, r + 1.0) : r + 1.0;
      }
      if (op == ReduceOp::average) *expected /= static_cast<double>(members.size());
      std::vector<float> values(17, static_cast<float>(rank() + 1));
      allreduce(world(), placed(values.data(), 17),
                {.name = name + std::string(name_of(op)), .op = op, .process_set = set});
      for (const float value : values) EXPECT_FLOAT_EQ(value, static_cast<float>(*expected));
    }
  }

  /// The last one to join, which is the same on every rank.
  int join_alike(ProcessSet set) {
    int last = join(world(), set);
    const Result all = allgather(world(), placed(&last, 1), {.process_set = set});
    EXPECT_EQ(elements_of<std::int32_t>(all),
              Elements<std::int32_t>(ranks_of(context(), set).size(), last));
    return last;
  }

  void expect_each_in_turn(ProcessSet set) {
    const auto members = ranks_of(context(), set);
    for (const int first : members) {
      for (const std::string& name : {"new" + std::to_string(first), std::string("cached")}) {
        for (int round = 0; round < 6; ++round) expect_reduced_without(-1, set, name);  // eager
        if (rank() != first || members.size() == 1) {
          for (int round = 0; round < 2; ++round) expect_reduced_without(first, set, name);
        }
        const int last = join_alike(set);
        EXPECT_TRUE(last != first || members.size() == 1) << "rank " << first << " joined first";
      }
    }
  }
};

TEST_F(Join, TheOthersReduceWithoutEachRankInTurn) {
  expect_each_in_turn(kWorld);
}

TEST_F(Join, EveryTypeIsReducedWithoutTheFirstRank) {
  for_each_type([&]<class T>() {
    auto others = inputs<T>(289, 0);
    if (size() > 1) others.erase(others.begin());
    std::vector<Reduction> reductions;
    for (const ReduceOp op : kElementOps) {
      reductions.push_back({op});
      if constexpr (is_float<T>) reductions.push_back({op, -0.5, 0.25});
    }
    const Elements<T> values = input<T>(rank(), 289, 0);
    for (const Reduction& how : reductions) {
      if (rank() == 0 && size() > 1) continue;
      auto own = values;
      allreduce(world(), view_of<T>(own, {17, 17}),
                {.name = std::string(name_of(how.op)),
                 .op = how.op,
                 .prescale = how.prescale,
                 .postscale = how.postscale});
      expect_reduced<T>(how, others, own.data(), 0, own.size());
    }
    join_alike(kWorld);
  });
}

TEST_F(Join, OnEvenAndOddRanks) {
  expect_each_in_turn(add_even_and_odd());
  barrier(world());
}

TEST_F(Join, RanksRunOutOfDataOneAfterTheOther) {
  auto random = generator();
  for (int epoch = 0; epoch < 5; ++epoch) {
    std::vector<int> batches(static_cast<std::size_t>(size()));
    for (int& count : batches) count = static_cast<int>(random() % 9);
    for (int batch = 0; batch < batches[static_cast<std::size_t>(rank())]; ++batch) {
      std::vector<std::int32_t> ones(30, 1);
      allreduce(world(), placed(ones.data(), 30), {.name = "gradients", .op = ReduceOp::sum});
      const auto with_data =
          std::count_if(batches.begin(), batches.end(), [&](int count) { return batch < count; });
      EXPECT_EQ(ones, std::vector<std::int32_t>(30, static_cast<std::int32_t>(with_data)));
    }
    join_alike(kWorld);
  }
}

// As an optimizer does: gradients while there are data, then the model of the one that had most.
TEST_F(Join, TheRanksGoOnFromTheLastOnesValues) {
  const Buffer buffer(context(), 1000 * sizeof(float), where());
  const TensorView gradients{buffer.data(), DataType::float32, {1000}, where()};
  for (int epoch = 0; epoch < size() + 1; ++epoch) {
    const int steps = 2 * ((rank() + epoch) % size());
    for (int step = 0; step < steps; ++step) {
      here().write(gradients, Elements<float>(1000, 1.0F));
      allreduce(world(), gradients, {.name = "gradients", .op = ReduceOp::sum});
      EXPECT_EQ(here().read<float>(gradients),
                Elements<float>(1000, static_cast<float>(size() - step / 2 - 1)));
    }
    const int last = join(world());
    EXPECT_TRUE(size() == 1 || (last + epoch) % size() == size() - 1) << last;
    here().write(gradients, Elements<float>(1000, static_cast<float>(rank() + 10 * epoch)));
    broadcast(world(), {buffer.data(), DataType::uint8, {4000}, where()},
              {.name = "model", .root = last});
    EXPECT_EQ(here().read<float>(gradients),
              Elements<float>(1000, static_cast<float>(last + 10 * epoch)));
  }
}

TEST_F(Join, OtherCollectivesFailClearlyAndJoinStillAgrees) {
  for (const Family& family : families()) {
    if (family.name == "allreduce" || size() == 1) continue;
    SCOPED_TRACE(family.name);
    for (int joined = 0; joined < size(); ++joined) {
      for (const bool known : {false, true}) {
        const std::string name = family.name + std::to_string(joined);
        if (known) family.run(this_member(), name, kWorld);
        if (rank() != joined) {
          const std::string text = expect_error(ErrorCode::mismatch, [&] {
                                     family.run(this_member(), name, kWorld);
                                   }).what();
          EXPECT_NE(text.find("rank " + std::to_string(joined) + " has called join()"),
                    std::string::npos)
              << text;
        }
        join_alike(kWorld);
      }
      family.run(this_member(), family.name + std::to_string(joined), kWorld);
    }
  }
}

TEST_F(Join, WaitsForWhatThisRankHasInFlight) {
  std::int32_t value = 1;
  Placed tensor = placed(value);
  Handle handle = allreduce_async(world(), tensor, {.name = "x", .op = ReduceOp::sum});
  join_alike(kWorld);
  handle.wait();
  tensor.take_back();
  EXPECT_EQ(value, size());
}

TEST_F(Join, OnASetThatThisRankIsNotInIsRefused) {
  const ProcessSet first_alone = add_process_set(world(), {0});
  if (rank() == 0) {
    EXPECT_EQ(join(world(), first_alone), 0);
  } else {
    expect_error(ErrorCode::invalid_argument, [&] { (void)join(world(), first_alone); });
  }
  expect_error(ErrorCode::invalid_argument, [&] { (void)join(world(), ProcessSet(9)); });
  barrier(world());
}

}  // namespace
}  // namespace hora::internal::test
