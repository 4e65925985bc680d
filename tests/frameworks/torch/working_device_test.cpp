// Tensors on other devices than this rank's, by way of which they travel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <vector>

#include "frameworks/torch/tensor_view.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/expect_error.h"
#include "tests/support/other_device/other_device.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

const torch::Device device = other_device(1);

class WorkingDevice : public testing::Test {
 protected:
  /// Rank `rank`'s, on the other device, with gaps between its rows.
  static torch::Tensor rows_of(int rank, std::int64_t rows) {
    return (torch::arange(rows * 6).to(torch::kFloat) + rank)
        .reshape({rows, 6})
        .to(device)
        .slice(1, 0, 6, 2);
  }
  torch::Tensor mine(std::int64_t rows = 4) const { return rows_of(world_.rank(), rows); }
  torch::Tensor sum(std::int64_t rows = 4) const {
    torch::Tensor all = torch::zeros({rows, 3});
    for (int rank = 0; rank < world_.size(); ++rank) all += rows_of(rank, rows).cpu();
    return all;
  }
  static void expect_there(const torch::Tensor& actual, const torch::Tensor& expected) {
    EXPECT_EQ(actual.device(), device);
    EXPECT_TRUE(torch::equal(actual.cpu(), expected)) << actual.cpu() << expected;
  }

  const Context world_ = init();
};

TEST_F(WorkingDevice, IsTheTensorsOrThisRanks) {
  EXPECT_EQ(working_device(world_, torch::kCPU), torch::kCPU);
  EXPECT_EQ(working_device(world_, device), torch::kCPU);
  EXPECT_EQ(working_device(world_, torch::Device(torch::kCUDA, 0)), torch::Device(torch::kCUDA, 0))
      << "a job on CPUs";
  EXPECT_EQ(working_device(world_, torch::kMeta), torch::kMeta);

  const auto on = [](const torch::Device& where) { return torch::zeros({1}, where); };
  EXPECT_EQ(working_device(world_, at::TensorList{}), torch::kCPU);
  EXPECT_EQ(working_device(world_, {on(torch::kMeta), on(torch::kMeta)}), torch::kMeta);
  EXPECT_EQ(working_device(world_, {on(torch::kMeta), on(device)}), torch::kCPU);
}

TEST_F(WorkingDevice, EveryCollectiveGivesItsResultWhereItsTensorIs) {
  const std::vector<int> ranks = ranks_of(world_, kWorld);
  expect_there(allreduce(world_, mine(), {.name = "sum", .op = ReduceOp::sum}), sum());
  expect_there(broadcast(world_, mine(), {.name = "root"}), rows_of(0, 4).cpu());
  std::vector<torch::Tensor> all;
  for (const int rank : ranks) all.push_back(rows_of(rank, 1 + rank).cpu());
  expect_there(allgather(world_, mine(1 + world_.rank()), {.name = "rows"}), torch::cat(all));
  std::vector<torch::Tensor> received;
  for (const int rank : ranks) {
    received.push_back(rows_of(rank, world_.size()).cpu().narrow(0, world_.rank(), 1));
  }
  expect_there(alltoall(world_, mine(world_.size()), {.name = "turned"}).tensor,
               torch::cat(received));
  expect_there(reduce_scatter(world_, mine(world_.size()), {.name = "part", .op = ReduceOp::sum}),
               sum(world_.size()).narrow(0, world_.rank(), 1));
}

TEST_F(WorkingDevice, InPlaceTheTensorItselfHasTheResult) {
  torch::Tensor values = mine();
  allreduce_(world_, values, {.name = "sum", .op = ReduceOp::sum});
  expect_there(values, sum());
  values = mine();
  broadcast_(world_, values, {.name = "root"});
  expect_there(values, rows_of(0, 4).cpu());

  const std::vector<torch::Tensor> group{mine(4), mine(7)};
  grouped_allreduce_(world_, group, {.name = "group", .op = ReduceOp::sum});
  expect_there(group[0], sum(4));
  expect_there(group[1], sum(7));
}

TEST_F(WorkingDevice, ItsGradientsComeBackToo) {
  const torch::Tensor values = mine().detach().requires_grad_();
  const torch::Tensor reduced =
      allreduce(world_, values, {.name = "loss", .op = ReduceOp::average});
  (reduced * (1.0 + world_.rank())).sum().backward();
  const double mean = mean_over_ranks(world_, [](int rank) { return 1.0 + rank; });
  EXPECT_EQ(values.grad().device(), device);
  EXPECT_TRUE(torch::allclose(values.grad().cpu(), torch::full({4, 3}, mean)));
}

TEST_F(WorkingDevice, AGroupOnSeveralDevicesIsRefused) {
  const std::vector<torch::Tensor> group{torch::zeros({2}), mine()};
  expect_error(ErrorCode::invalid_argument,
               testing::AllOf(HasSubstr("g.1"), HasSubstr(device.str()), HasSubstr("cpu")),
               [&] { grouped_allreduce(world_, group, {.name = "g"}); });
}

}  // namespace
}  // namespace hora::internal::test
