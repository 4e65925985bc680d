#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <sstream>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

/// Sample i is the number i.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, std::vector<std::size_t>> {
  explicit Numbers(std::size_t samples) : count(samples) {}
  std::vector<std::size_t> get_batch(torch::ArrayRef<std::size_t> request) override {
    return request.vec();
  }
  torch::optional<std::size_t> size() const override { return count; }
  std::size_t count;
};

/// Samples of a pass over a loader.
template <class Loader>
std::vector<std::vector<std::size_t>> pass(Loader& loader) {
  std::vector<std::vector<std::size_t>> batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

std::vector<std::vector<std::size_t>> batches_of(const DistributedSampler& sampler) {
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t step = 0; step < sampler.steps(); ++step) {
    if (!sampler.batch(step).empty()) batches.push_back(sampler.batch(step));
  }
  return batches;
}

TEST(DataLoaderSampler, ALoadersPassIsTheSamplersEpoch) {
  for (const Remainder remainder : {Remainder::drop, Remainder::keep}) {
    DistributedSampler sampler(
        22, {.rank = 2, .size = 3, .seed = seed(), .batch = 5, .remainder = remainder});
    auto loader = torch::data::make_data_loader(
        Numbers(22), DataLoaderSampler(sampler),
        torch::data::DataLoaderOptions(5).workers(2).enforce_ordering(true));
    for (const std::uint64_t epoch : {0U, 1U, 4U}) {
      sampler.set_epoch(epoch);
      EXPECT_EQ(pass(*loader), batches_of(sampler)) << epoch;
    }
    sampler.restore(sampler.position(1));
    EXPECT_EQ(pass(*loader), batches_of(sampler)) << "resumed";
  }
}

// 16 samples in steps of 15: the last one is for rank 0 alone.
TEST(DataLoaderSampler, ARankWithoutSamplesInTheLastStepEndsBeforeIt) {
  for (const int rank : {0, 1}) {
    DistributedSampler sampler(16,
                               {.rank = rank, .size = 3, .batch = 5, .remainder = Remainder::keep});
    ASSERT_EQ(sampler.steps(), 2U);
    auto loader = torch::data::make_data_loader(Numbers(16), DataLoaderSampler(sampler),
                                                torch::data::DataLoaderOptions(5));
    EXPECT_THAT(pass(*loader), testing::SizeIs(rank == 0 ? 2 : 1));
  }
}

TEST(DataLoaderSampler, SavedAndLoadedItGoesOnBehindWhatItGave) {
  DistributedSampler sampler(100, {.size = 2, .seed = ~std::uint64_t{0}, .batch = 5});
  sampler.set_epoch(3);
  DataLoaderSampler first(sampler);
  for (int i = 0; i < 4; ++i) first.next(5);
  torch::serialize::OutputArchive saved;
  first.save(saved);
  std::stringstream bytes;
  saved.save_to(bytes);

  DistributedSampler again(100, {.size = 4, .seed = ~std::uint64_t{0}, .batch = 5});
  DataLoaderSampler second(again);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  second.load(archive);
  EXPECT_EQ(again.position(0), sampler.position(4));
  EXPECT_EQ(second.next(5).value(), again.batch(0));
}

TEST(DataLoaderSampler, RefusesAnotherBatchAndAnotherSize) {
  DistributedSampler sampler(22, {.batch = 5});
  DataLoaderSampler adaptor(sampler);
  expect_error(ErrorCode::invalid_argument, HasSubstr("batches are of 6 samples"),
               [&] { adaptor.next(6); });
  expect_error(ErrorCode::invalid_argument, HasSubstr("data set has 23 samples"),
               [&] { adaptor.reset(23); });
}

}  // namespace
}  // namespace hora::internal::test
