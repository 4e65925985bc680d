// Allgather, alltoall and reduce-scatter whose results go to memory of the caller's.
#include <algorithm>
#include <functional>
#include <span>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Integers = std::vector<std::int32_t>;
using testing::AllOf;
using testing::HasSubstr;

class Into : public Conformance {
 protected:
  /// `submit(output)` gives the result; `submit_async` likewise its handle.
  struct Calls {
    std::function<Result(const TensorView& output)> submit;
    std::function<ResultHandle(const TensorView& output)> submit_async;
  };

  /// Blocking and not, into plain memory and into a Buffer, new and known names.
  void expect_arrives(const Calls& calls, const std::string& name, const Integers& expected,
                      const std::vector<std::int64_t>& rows) {
    SCOPED_TRACE(name);
    const Buffer buffer(context(), std::max<std::size_t>(64, expected.size() * 4), where());
    const auto count = static_cast<std::int64_t>(expected.size());
    const TensorView shared{buffer.data(), DataType::int32, {count}, where()};
    Integers values(expected.size());
    const Placed plain = placed(values);
    const Integers none(expected.size(), -1);
    for (int round = 0; round < 2; ++round) {
      for (const TensorView& output : {TensorView(plain), shared}) {
        here().write(output, none);
        expect_is(calls.submit(output), output, expected, rows);
        here().write(output, none);
        ResultHandle handle = calls.submit_async(output);
        expect_is(handle.wait(), output, expected, rows);
      }
    }
  }

 private:
  void expect_is(const Result& result, const TensorView& output, const Integers& expected,
                 const std::vector<std::int64_t>& rows) {
    EXPECT_EQ(elements_of<std::int32_t>(result), expected);
    EXPECT_EQ(result.rows(), rows);
    EXPECT_EQ(result.view().device, where());
    EXPECT_EQ(result.view().stream, output.stream);
    if (!expected.empty()) {
      EXPECT_EQ(static_cast<void*>(result.data()), output.data);
    }
  }
};

TEST_F(Into, AllgatherOfRowsThatMayDiffer) {
  const auto expect = [&](const std::string& name, const std::function<int(int)>& rows_of) {
    Integers expected;
    std::vector<std::int64_t> rows;
    for (int r = 0; r < size(); ++r) {
      rows.push_back(rows_of(r));
      expected.insert(expected.end(), static_cast<std::size_t>(rows_of(r)), r);
    }
    const Integers own(static_cast<std::size_t>(rows_of(rank())), rank());
    const Placed input = placed(own);
    const AllgatherOptions options{.name = name};
    expect_arrives(
        {[&](const TensorView& output) { return allgather_into(world(), input, output, options); },
         [&](const TensorView& output) {
           return allgather_into_async(world(), input, output, options);
         }},
        name, expected, rows);
  };
  expect("even", [](int) { return 17; });
  expect("long", [](int) { return 70000; });
  expect("growing", [](int r) { return 1 + 5 * r; });
  expect("one rank alone", [&](int r) { return r == size() - 1 ? 17 : 0; });
  // As long as if all brought what the first one does, but not evenly.
  expect("even on average", [&](int r) { return 6 + (r == 1 ? -2 : 0) + (r == 2 ? 2 : 0); });
  expect("nothing", [](int) { return 0; });
}

TEST_F(Into, AlltoallWithAndWithoutSplits) {
  const auto expect = [&](const std::string& name, bool with_splits,
                          const std::function<int(int, int)>& rows_of) {
    Integers own, expected;
    AlltoallOptions options{.name = name};
    std::vector<std::int64_t> rows;
    for (int r = 0; r < size(); ++r) {
      own.insert(own.end(), static_cast<std::size_t>(rows_of(rank(), r)), 10 * rank() + r);
      expected.insert(expected.end(), static_cast<std::size_t>(rows_of(r, rank())),
                      10 * r + rank());
      rows.push_back(rows_of(r, rank()));
      if (with_splits) options.splits.push_back(rows_of(rank(), r));
    }
    const Placed input = placed(own);
    expect_arrives(
        {[&](const TensorView& output) { return alltoall_into(world(), input, output, options); },
         [&](const TensorView& output) {
           return alltoall_into_async(world(), input, output, options);
         }},
        name, expected, rows);
  };
  expect("even", false, [](int, int) { return 17; });
  expect("uneven", true, [](int from, int to) { return (from + 2 * to) % 5; });
}

TEST_F(Into, ReduceScatterOfAnyNumberOfRows) {
  for (int rows = 0; rows <= 2 * size() + 1; ++rows) {
    const Integers own(static_cast<std::size_t>(rows), rank() + 1);
    const Placed input = placed(own);
    const int own_rows = rows / size() + (rank() < rows % size() ? 1 : 0);
    const Integers expected(static_cast<std::size_t>(own_rows), size() * (size() + 1) / 2);
    const ReduceScatterOptions options{.name = std::to_string(rows), .op = ReduceOp::sum};
    expect_arrives({[&](const TensorView& output) {
                      return reduce_scatter_into(world(), input, output, options);
                    },
                    [&](const TensorView& output) {
                      return reduce_scatter_into_async(world(), input, output, options);
                    }},
                   options.name, expected, {own_rows});
  }
}

TEST_F(Into, OnEvenAndOddRanks) {
  const auto set = add_even_and_odd();
  const std::vector<int> ranks = ranks_of(context(), set);
  const std::int32_t own = rank();
  Integers all(ranks.size());
  allgather_into(world(), placed(own), placed(all), {.name = "x", .process_set = set});
  EXPECT_EQ(all, Integers(ranks.begin(), ranks.end()));
  barrier(world());
}

TEST_F(Into, AnOutputOfAnotherLengthIsAnErrorAndTheNextCollectiveIsRight) {
  const Integers own(3, rank());
  const auto n = static_cast<std::size_t>(size());
  for (const std::size_t wrong : {3 * n + 1, 3 * n - 1}) {
    for (int round = 0; round < 2; ++round) {
      // Wrong on the first rank alone.
      Integers output(rank() == 0 ? wrong : 3 * n, -1);
      const auto submit = [&] {
        allgather_into(world(), placed(own), placed(output), {.name = "x"});
      };
      if (rank() == 0) {
        const Error error =
            expect_error(ErrorCode::invalid_argument,
                         AllOf(HasSubstr("\"x\""), HasSubstr(std::to_string(wrong) + " elements"),
                               HasSubstr("the result " + std::to_string(3 * n))),
                         submit);
        EXPECT_EQ(error.tensor(), "x");
        EXPECT_EQ(output, Integers(wrong, -1));
      } else {
        submit();
        EXPECT_EQ(output.back(), size() - 1);
      }
      Integers right(3 * n);
      allgather_into(world(), placed(own), placed(right), {.name = "x"});
      EXPECT_EQ(right.back(), size() - 1);
    }
  }
  // Every rank knows the length of its part of a reduce-scatter.
  Integers part(static_cast<std::size_t>(rank() < 3 % size() ? 3 / size() + 2 : 3 / size() + 1));
  expect_error(ErrorCode::invalid_argument, HasSubstr("they must be as many"), [&] {
    reduce_scatter_into(world(), placed(own), placed(part), {.name = "y", .op = ReduceOp::sum});
  });
}

TEST_F(Into, WhatCanNeverBeRightIsRefusedAtOnce) {
  Integers values(static_cast<std::size_t>(2 * size()), rank());
  std::vector<float> floats(static_cast<std::size_t>(size()));
  std::vector<std::int32_t> host(static_cast<std::size_t>(size()));
  const Placed all = placed(values), of_floats = placed(floats);
  TensorView own = all;
  own.shape = {1};
  TensorView output = all;
  output.shape = {size()};
  const auto refused = [&](const TensorView& wrong, const std::string& text) {
    expect_error(ErrorCode::invalid_argument, HasSubstr(text),
                 [&] { allgather_into(world(), own, wrong, {.name = "x"}); });
  };
  refused(of_floats, "output is of float32");
  refused(output, "overlaps");
  output.data = nullptr;
  refused(output, "null");
  TensorView elsewhere = view(host);
  if (!on_device()) elsewhere.device = {DeviceKind::cuda, 0};
  refused(elsewhere, on_device() ? "output is on cpu" : "output is on cuda");
  barrier(world());
}

}  // namespace
}  // namespace hora::internal::test
