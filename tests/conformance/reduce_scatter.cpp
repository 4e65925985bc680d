#include <algorithm>
#include <cstring>

#include "tests/conformance/conformance.h"
#include "tests/support/reference/expect_reduced.h"

namespace hora::internal::test {
namespace {

using ReduceScatter = Conformance;

TEST_F(ReduceScatter, HasTheBitsOfAllreduce) {
  if (on_device()) GTEST_SKIP() << "NCCL sums in orders of its own";
  const auto expect = [&]<class T>(const Reduction& how, std::int64_t rows) {
    const std::string name(name_of(data_type_of<T>));
    SCOPED_TRACE(name + ", " + std::string(name_of(how.op)));
    const auto values = input<T>(rank(), rows * 17, 0);
    auto all = values, own = values;
    const Shape shape{rows, 17};
    allreduce(world(), view_of<T>(all, shape),
              {.name = "all " + name,
               .op = how.op,
               .prescale = how.prescale,
               .postscale = how.postscale});
    const Result result = reduce_scatter(world(), view_of<T>(own, shape),
                                         {.name = "own " + name,
                                          .op = how.op,
                                          .prescale = how.prescale,
                                          .postscale = how.postscale});
    // The first rows % ranks pieces are one row longer.
    const std::int64_t longer = rows % size();
    const std::int64_t begin = rank() * (rows / size()) + std::min<std::int64_t>(rank(), longer);
    const std::int64_t count = rows / size() + (rank() < longer ? 1 : 0);
    ASSERT_EQ(result.shape(), (Shape{count, 17}));
    EXPECT_EQ(result.rows(), std::vector<std::int64_t>{count});
    EXPECT_EQ(std::memcmp(result.data(), all.data() + begin * 17,
                          static_cast<std::size_t>(count * 17) * sizeof(Stored<T>)),
              0);
    EXPECT_EQ(own, values) << "the input is read only";
  };
  for_each_type([&]<class T>() {
    for (const ReduceOp op : kElementOps) expect.template operator()<T>({op}, 17);
    if constexpr (is_float<T>) {
      for (const Reduction& how :
           {Reduction{ReduceOp::average}, Reduction{ReduceOp::sum, 0.7, 1.0},
            Reduction{ReduceOp::max, -0.5, 3.0}, Reduction{ReduceOp::average, 1.25, 0.3}}) {
        expect.template operator()<T>(how, 17);
      }
    }
  });
  expect.template operator()<float>({ReduceOp::sum}, 1200);
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
  EXPECT_EQ(reduce_scatter(world(), placed(floats), {.name = "x"}).shape().size(), 1U);
}

}  // namespace
}  // namespace hora::internal::test
