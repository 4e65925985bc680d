#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/conformance/conformance.h"
#include "tests/support/reference/expect_reduced.h"

namespace hora::internal::test {
namespace {

class Allreduce : public Conformance {
 protected:
  /// Random tensors of every shape; `kind` keeps names apart.
  template <class T>
  void expect_right(const Reduction& how, const std::string& kind) {
    for (const Shape& shape : {Shape{17}, Shape{17, 17}, Shape{17, 17, 17}}) {
      SCOPED_TRACE(std::string(name_of(data_type_of<T>)) + " " + std::string(name_of(how.op)) +
                   " in " + std::to_string(shape.size()) + " dimensions");
      const auto by_rank = inputs<T>(count_of(shape), shape.size());
      Elements<T> first;
      for (int round = 0; round < 6; ++round) {  // new name, known name, eager
        auto own = by_rank[static_cast<std::size_t>(rank())];
        allreduce(world(), view_of<T>(own, shape),
                  {.name = kind + std::to_string(shape.size()),
                   .op = how.op,
                   .prescale = how.prescale,
                   .postscale = how.postscale});
        expect_reduced<T>(how, by_rank, own.data(), 0, own.size());
        if (round == 0) first = own;
        EXPECT_EQ(std::memcmp(own.data(), first.data(), own.size() * sizeof own.front()), 0);
      }
    }
  }
};

TEST_F(Allreduce, OfEveryTypeAndShapeIsExactForIntegersAndWithinTheBoundForFloats) {
  for_each_type([&]<class T>() {
    for (const ReduceOp op : kElementOps) expect_right<T>({op}, std::string(name_of(op)));
    if constexpr (is_float<T>) expect_right<T>({ReduceOp::average}, "average");
  });
}

TEST_F(Allreduce, PrescaleAndPostscaleOfEveryFloatType) {
  for_each_float([&]<class T>() {
    for (const ReduceOp op : kElementOps) {
      expect_right<T>({op, 0.75, 1.0}, "pre");
      expect_right<T>({op, 1.0, -1.3}, "post");
      expect_right<T>({op, 0.7, 0.5}, "both");
    }
    expect_right<T>({ReduceOp::average, 1.25, 0.3}, "average");
  });
}

TEST_F(Allreduce, MinimumAndMaximumOfANanAreNan) {
  if (on_device()) GTEST_SKIP() << "NCCL's leave NaN out";
  for_each_float([&]<class T>() {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      Elements<T> values(17, static_cast<T>(1.0));
      if (rank() == size() - 1) values[3] = static_cast<T>(std::nan(""));
      allreduce(world(), view_of<T>(values, {17}), {.name = "nan", .op = op});
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(std::isnan(static_cast<double>(values[i])), i == 3);
      }
    }
  });
}

TEST_F(Allreduce, EveryByteButZeroIsTrue) {
  Elements<bool> values = {0, static_cast<std::uint8_t>(rank() == 0 ? 0 : 2), 200};
  allreduce(world(), view_of<bool>(values, {3}), {.name = "or", .op = ReduceOp::sum});
  EXPECT_EQ(values, (Elements<bool>{0, static_cast<std::uint8_t>(size() > 1 ? 1 : 0), 1}));
}

TEST_F(Allreduce, InPlaceInABuffer) {
  for_each_type([&]<class T>() {
    const Buffer buffer(context(), 8192 * sizeof(T), where());
    EXPECT_EQ(buffer.device(), where());
    const TensorView whole{buffer.data(), data_type_of<T>, {8192}, where()};
    const auto by_rank = inputs<T>(4913, 1);
    const auto& own = by_rank[static_cast<std::size_t>(rank())];
    const auto guard = static_cast<typename Elements<T>::value_type>(1);
    Elements<T> elements(8192, guard);
    std::copy(own.begin(), own.end(), elements.begin() + 5);
    here().write(whole, elements);
    allreduce(world(), {buffer.data() + 5 * sizeof(T), data_type_of<T>, {17, 17, 17}, where()},
              {.name = "inside", .op = ReduceOp::sum});
    elements = here().read<T>(whole);
    expect_reduced<T>({ReduceOp::sum}, by_rank, elements.data() + 5, 0, own.size());
    EXPECT_EQ(elements[4], guard);
    EXPECT_EQ(elements[5 + 4913], guard);
  });
}

TEST_F(Allreduce, ReductionsAndLengthsThatDifferAreTheSameErrorOnEveryRankAsOfReduceScatter) {
  using Floats = std::vector<float>;
  using Reduce = std::function<Floats(const std::string&, const Reduction&, std::int64_t)>;
  const auto all = [&](const std::string& name, const Reduction& how, std::int64_t count) {
    Floats ones(12, 1.0F);
    allreduce(world(), placed(ones.data(), count),
              {.name = name, .op = how.op, .prescale = how.prescale, .postscale = how.postscale});
    return ones;
  };
  const auto part = [&](const std::string& name, const Reduction& how, std::int64_t count) {
    Floats ones(12, 1.0F);
    return elements_of<float>(reduce_scatter(
        world(), placed(ones.data(), count),
        {.name = name, .op = how.op, .prescale = how.prescale, .postscale = how.postscale}));
  };
  const Reduction sum{ReduceOp::sum};
  const auto expect = [&](const std::vector<std::string>& words, const Reduction& usual,
                          const Reduction& of_odd, std::int64_t count_of_odd = 12) {
    for (const Reduce& reduce : {Reduce(all), Reduce(part)}) {
      expect_disagreement({words,
                           [&](const std::string& name, bool odd) {
                             (void)reduce(name, odd ? of_odd : usual, odd ? count_of_odd : 12);
                           }},
                          [&](const std::string& name) {
                            const Floats got = reduce(name, sum, 12);
                            EXPECT_EQ(got, Floats(got.size(), static_cast<float>(size())));
                          });
    }
  };
  expect({"shape", "[12]", "[11]"}, sum, sum, 11);
  expect({"reduction", "sum", "max"}, sum, {ReduceOp::max});
  expect({"reduction", "sum", "average"}, sum, {ReduceOp::average});
  expect({"prescale", "prescale 0.5"}, sum, {ReduceOp::sum, 0.5, 1.0});
  expect({"postscale", "postscale 0.1", "postscale 0.10000000000000002"}, {ReduceOp::sum, 1.0, 0.1},
         {ReduceOp::sum, 1.0, std::nextafter(0.1, 1.0)});
}

TEST_F(Allreduce, WhatCanNeverBeRightIsRefusedAtOnce) {
  std::vector<std::int32_t> ints(17, 1);
  std::vector<float> floats(17, 1.0F);
  const auto refused = [&](const TensorView& tensor, AllreduceOptions options) {
    options.name = "x";
    expect_error(ErrorCode::invalid_argument, [&] { allreduce(world(), tensor, options); });
  };
  const double infinity = std::numeric_limits<double>::infinity();
  refused(view(ints.data(), 17), {.op = ReduceOp::average});
  refused(view(ints.data(), 17), {.op = ReduceOp::sum, .prescale = 2.0});
  refused(view(ints.data(), 17), {.op = ReduceOp::sum, .postscale = 2.0});
  refused(view(ints.data(), 17), {.op = ReduceOp::adasum});
  refused(view(floats.data(), 17), {.prescale = infinity});
  refused(view(floats.data(), 17), {.postscale = std::nan("")});
  refused(view(floats.data(), Shape{-1}), {});
  refused(view(floats.data(), Shape{std::int64_t{1} << 62, 17}), {});
  refused(view(static_cast<float*>(nullptr), 17), {});
  refused({floats.data(), DataType::float32, {17}, {DeviceKind::cuda, 7}}, {});
  expect_error(ErrorCode::invalid_argument, [&] {
    allreduce(world(), placed(floats.data(), 17), {.name = std::string(1025, 'n')});
  });
  const std::string zero("a\0b", 3);
  expect_error(ErrorCode::invalid_argument,
               testing::HasSubstr("\"a\\x00b\": a name has at most 1024 bytes"),
               [&] { allreduce(world(), placed(floats.data(), 17), {.name = zero}); });
  allreduce(world(), placed(ints.data(), 17), {.name = "x", .op = ReduceOp::sum});
  EXPECT_EQ(ints, std::vector<std::int32_t>(17, size()));
}

}  // namespace
}  // namespace hora::internal::test
