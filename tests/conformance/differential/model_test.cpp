#include "tests/conformance/differential/model.h"

#include <gtest/gtest.h>

#include <cstring>

namespace hora::internal::test {
namespace {

/// Two ranks, int32, rows of two elements.
Program program_of(Kind kind, std::vector<std::vector<std::int64_t>> rows) {
  Program program;
  program.ranks = 2;
  program.sets = {{0, 1}};
  Operation& operation = program.operations.emplace_back();
  operation.kind = kind;
  operation.type = DataType::int32;
  operation.row = {2};
  operation.rows = std::move(rows);
  operation.values = 5;
  return program;
}

std::vector<std::int32_t> values_of(const Contents& contents) {
  std::vector<std::int32_t> values(contents.bytes.size() / sizeof(std::int32_t));
  if (!values.empty()) std::memcpy(values.data(), contents.bytes.data(), contents.bytes.size());
  return values;
}

struct Outcome {
  explicit Outcome(const Program& program) {
    for (int rank = 0; rank < 2; ++rank) {
      inputs.push_back(values_of(input_of(program, program.operations[0], rank)));
      outputs.push_back(expected_of(program, program.operations[0], rank));
    }
  }
  std::vector<std::vector<std::int32_t>> inputs;
  std::vector<Contents> outputs;
};

std::vector<std::int32_t> sum(const std::vector<std::int32_t>& a,
                              const std::vector<std::int32_t>& b) {
  std::vector<std::int32_t> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] + b[i]);
  return result;
}

TEST(Model, AllreduceAddsAndBroadcastCopies) {
  const Outcome added(program_of(Kind::allreduce, {{3}, {3}}));
  ASSERT_NE(added.inputs[0], added.inputs[1]);
  EXPECT_EQ(values_of(added.outputs[1]), sum(added.inputs[0], added.inputs[1]));
  Program from_1 = program_of(Kind::broadcast, {{3}, {3}});
  from_1.operations[0].root = 1;
  const Outcome copied(from_1);
  EXPECT_EQ(values_of(copied.outputs[0]), copied.inputs[1]);
}

TEST(Model, AllgatherPutsRowsInOrder) {
  const Outcome run(program_of(Kind::allgather, {{1}, {2}}));
  auto expected = run.inputs[0];
  expected.insert(expected.end(), run.inputs[1].begin(), run.inputs[1].end());
  EXPECT_EQ(values_of(run.outputs[0]), expected);
  EXPECT_EQ(run.outputs[1].shape, (Shape{3, 2}));
  EXPECT_EQ(run.outputs[1].rows, (std::vector<std::int64_t>{1, 2}));
}

TEST(Model, AlltoallDealsRowsOut) {
  const Outcome run(program_of(Kind::alltoall, {{1, 2}, {0, 1}}));
  const auto& a = run.inputs[0];  // rows: one for rank 0, two for rank 1
  const auto& b = run.inputs[1];
  EXPECT_EQ(values_of(run.outputs[0]), (std::vector<std::int32_t>{a[0], a[1]}));
  EXPECT_EQ(values_of(run.outputs[1]),
            (std::vector<std::int32_t>{a[2], a[3], a[4], a[5], b[0], b[1]}));
  EXPECT_EQ(run.outputs[1].rows, (std::vector<std::int64_t>{2, 1}));
}

TEST(Model, ReduceScatterGivesTheFirstOnesMore) {
  const Outcome run(program_of(Kind::reduce_scatter, {{3}, {3}}));
  const auto all = sum(run.inputs[0], run.inputs[1]);
  EXPECT_EQ(values_of(run.outputs[0]), (std::vector<std::int32_t>(all.begin(), all.begin() + 4)));
  EXPECT_EQ(values_of(run.outputs[1]), (std::vector<std::int32_t>(all.begin() + 4, all.end())));
}

}  // namespace
}  // namespace hora::internal::test
