// hora on some of the application's ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <hora/mpi.h>
#include <mpi.h>

#include <concepts>
#include <cstddef>
#include <numeric>
#include <optional>

#include "ops/mpi/environment.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

/// MPI, as an application has it that starts it itself.
struct World {
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  MpiEnvironment environment;
  int rank = 0;
  int size = 0;
};

/// Collectives of hora, a process set's among them, on these ranks of MPI_COMM_WORLD.
void expect_works(const Context& context, const std::vector<int>& members, int world_rank) {
  ASSERT_EQ(context.size(), static_cast<int>(members.size()));
  ASSERT_EQ(members[static_cast<std::size_t>(context.rank())], world_rank);
  const ProcessSet last = add_process_set(context, {context.size() - 1});
  for (int round = 0; round < 3; ++round) {
    std::int32_t sum = world_rank;
    allreduce(context, view(&sum, 1), {.name = "sum", .op = ReduceOp::sum});
    EXPECT_EQ(sum, std::accumulate(members.begin(), members.end(), 0));
    std::int32_t root = world_rank;
    broadcast(context, view(&root, 1), {.name = "root", .root = context.size() - 1});
    EXPECT_EQ(root, members.back());
    if (rank_in(context, last) < 0) continue;
    std::int32_t own = world_rank;
    allreduce(context, view(&own, 1), {.name = "own", .op = ReduceOp::sum, .process_set = last});
    EXPECT_EQ(own, world_rank);
  }
}

TEST(Communicators, EvenAndOddRanksEachHaveAHoraOfTheirOwn) {
  const World world;
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, world.rank, &half);
  std::vector<int> members;
  for (int r = world.rank % 2; r < world.size; r += 2) members.push_back(r);
  for (int round = 0; round < 2; ++round) {
    const Context context = init(half);
    expect_works(context, members, world.rank);
  }
  int relation = MPI_UNEQUAL;
  MPI_Comm_compare(half, half, &relation);
  EXPECT_EQ(relation, MPI_IDENT) << "the application's own stays";
  MPI_Comm_free(&half);
}

TEST(Communicators, AListOfRanksLeavesTheOthersAlone) {
  const World world;
  for (int first = 0; first < world.size; ++first) {
    std::vector<int> members(static_cast<std::size_t>(world.size - first));
    std::iota(members.begin(), members.end(), first);
    if (world.rank >= first) {
      const Context context = init({.ranks = members});
      expect_works(context, members, world.rank);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void expect_refused(const InitOptions& options, const std::string& text,
                    std::optional<MPI_Comm> communicator = std::nullopt) {
  expect_error(ErrorCode::invalid_argument, HasSubstr(text), [&] {
    const Context context = communicator ? init(*communicator, options) : init(options);
  });
}

TEST(Communicators, WhatIsNoneIsRefused) {
  const World world;
  expect_refused({}, "MPI_COMM_NULL", MPI_COMM_NULL);
  expect_refused({.ranks = {0}}, "one of them", MPI_COMM_WORLD);
  expect_refused({.ranks = {0, world.size}}, "must ascend");
  expect_refused({.ranks = {0, 0}}, "must ascend");
  expect_refused({.ranks = {world.rank == 0 ? 1 : 0}}, world.size == 1 ? "ascend" : "not in");
  const Context context = init();
  EXPECT_EQ(context.size(), world.size);
}

/// Only what is an MPI_Comm is taken for one: MPICH's is an int, Open MPI's a pointer.
template <class T>
concept Communicates = requires(T value) {
  init(value);
};
static_assert(Communicates<MPI_Comm>);
static_assert(!Communicates<short> && !Communicates<std::nullptr_t>);
static_assert(std::same_as<decltype(init({})), Context>, "no options at all");

}  // namespace
}  // namespace hora::internal::test
