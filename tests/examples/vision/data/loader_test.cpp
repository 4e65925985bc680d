#include "examples/vision/data/loader.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <thread>

#include "tests/examples/vision/train/made_images.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using test::in_order;
using test::MadeImages;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TransformOptions augmented() {
  return {.geometry = RandomResizedCrop{.size = 6},
          .flip = true,
          .normalisation = imagenet_normalisation};
}

std::vector<std::size_t> shuffled(std::size_t count) {
  std::vector<std::size_t> order = in_order(count);
  std::shuffle(order.begin(), order.end(), hora::internal::test::generator());
  return order;
}

struct Seen {
  std::vector<float> images;
  std::vector<std::int64_t> labels;
  std::vector<std::size_t> replaced;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> seen_from(Loader& loader, std::uint64_t epoch,
                            const std::vector<std::size_t>& order, std::size_t first_step = 0) {
  loader.start(epoch, order, first_step);
  std::vector<Seen> seen;
  while (const Batch batch = loader.next()) {
    seen.push_back({{batch->images().begin(), batch->images().end()},
                    {batch->labels().begin(), batch->labels().end()},
                    batch->replaced()});
  }
  return seen;
}

/// With each number of workers.
class LoaderTest : public testing::TestWithParam<int> {
 protected:
  Loader make(std::size_t batch, BadImages bad_images = BadImages::raise) {
    return {data_,
            augmented(),
            {.batch = batch,
             .workers = GetParam(),
             .bad_images = bad_images,
             .seed = 3,
             .log = [this](const std::string& text) { log_.insert(text); }}};
  }

  MadeImages data_{103};
  const std::vector<std::size_t> order_ = shuffled(103);
  std::multiset<std::string> log_;
};
INSTANTIATE_TEST_SUITE_P(Workers, LoaderTest, testing::Values(0, 1, 2, 5));

TEST_P(LoaderTest, GivesTheSameBatchesFromAnyStepAndDropsWhatWasLeft) {
  Loader without_workers(data_, augmented(), {.batch = 8, .workers = 0, .seed = 3});
  const std::vector<Seen> whole = seen_from(without_workers, 0, order_);
  std::size_t place = 0;
  for (const Seen& batch : whole) {
    for (const std::int64_t label : batch.labels) EXPECT_EQ(label, data_.label(order_[place++]));
  }
  EXPECT_EQ(place, 103U) << "every image once, in order";
  Loader loader = make(8);
  for (std::size_t first = 0; first <= 13; ++first) {
    loader.start(1, order_);
    loader.next();
    EXPECT_EQ(seen_from(loader, 0, order_, first),
              std::vector<Seen>(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
    EXPECT_EQ(loader.steps(), 13U);
    EXPECT_EQ(loader.next(), nullptr);
  }
  EXPECT_NE(seen_from(loader, 1, order_), whole) << "the epoch changes nothing";
}

// As a training on fewer ranks, or in another order, has it.
TEST_P(LoaderTest, AnImageDoesNotDependOnItsPlace) {
  Loader loader = make(103);
  const Seen all = seen_from(loader, 5, order_).front();
  const std::size_t floats = all.images.size() / 103;
  for (std::size_t place = 0; place < 12; ++place) {
    const Seen one = seen_from(loader, 5, {order_[place]}).front();
    EXPECT_TRUE(std::equal(one.images.begin(), one.images.end(),
                           all.images.begin() + static_cast<std::ptrdiff_t>(place * floats)));
  }
}

TEST_P(LoaderTest, RaisesABadImageInItsStep) {
  const auto order = in_order(40);
  data_.bad = {21, 22, 30};
  Loader loader = make(10);
  const auto next = [&] { return loader.next(); };
  loader.start(0, order);
  EXPECT_NE(loader.next(), nullptr);
  EXPECT_NE(loader.next(), nullptr);
  EXPECT_THAT(next, ThrowsMessage<BadImage>("image 21: made to be bad"));
  EXPECT_EQ(loader.next(), nullptr);
  loader.start(1, order, 3);
  EXPECT_THAT(next, ThrowsMessage<BadImage>("image 30: made to be bad"));
  loader.start(1, order);
  EXPECT_NE(loader.next(), nullptr);
}

TEST_P(LoaderTest, ReplacesBadImagesByTheNextGoodOne) {
  data_.bad = {3, 7, 8, 9};
  const auto order = in_order(10);
  Loader loader = make(5, BadImages::skip);
  const std::vector<Seen> seen = seen_from(loader, 4, order);
  std::vector<Seen> expected = seen_from(loader, 4, {0, 1, 2, 4, 4, 5, 6, 0, 0, 0});
  expected[0].replaced = {3};
  expected[1].replaced = {2, 3, 4};
  EXPECT_EQ(seen, expected);
  seen_from(loader, 4, order);
  EXPECT_THAT(log_, ElementsAre("image 3: made to be bad", "image 7: made to be bad",
                                "image 8: made to be bad", "image 9: made to be bad"));
}

TEST_P(LoaderTest, SkipsNoOtherErrorAndSaysThatNoImageIsGood) {
  data_.bad = {0, 1, 2, 3, 4, 5};
  data_.failing = 17;
  Loader loader = make(3, BadImages::skip);
  const auto next = [&] { return loader.next(); };
  loader.start(0, in_order(6));
  EXPECT_THAT(next, ThrowsMessage<std::runtime_error>(
                        HasSubstr("None of the 6 images of made images that this rank was given "
                                  "can be read; the first is image 0")));
  loader.start(0, {14, 15, 16, 17});
  EXPECT_NE(loader.next(), nullptr);
  EXPECT_THAT(next, ThrowsMessage<std::logic_error>("made to fail"));
}

TEST(Loader, CanBeDestroyedAtAnyMoment) {
  MadeImages data(200);
  data.bad = {150};
  for (int i = 0; i < 60; ++i) {
    Loader loader(data, augmented(), {.batch = 7, .workers = 1 + i % 4});
    if (i % 3 == 0) continue;
    loader.start(0, shuffled(200));
    try {
      for (int step = 0; step < i % 7; ++step) loader.next();
    } catch (const BadImage&) {
    }
  }
}

TEST(Loader, BatchesOutliveIt) {
  const MadeImages data(40);
  std::vector<Batch> kept;
  {
    Loader loader(data, augmented(), {.batch = 4, .workers = 2});
    loader.start(0, in_order(40));
    while (Batch batch = loader.next()) kept.push_back(std::move(batch));
  }
  EXPECT_EQ(kept.size(), 10U);
  std::size_t image = 0;
  for (const Batch& batch : kept) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch->images().data()) % 64, 0U);
    for (const std::int64_t label : batch->labels()) EXPECT_EQ(label, data.label(image++));
  }
  EXPECT_EQ(image, 40U);
  std::thread([&] { kept.clear(); }).join();
}

TEST(Loader, PrefetchesTwoBatches) {
  const MadeImages data(40);
  Loader loader(data, augmented(), {.batch = 4, .workers = 2});
  loader.start(0, shuffled(40));
  loader.next();
  loader.start(0, {});  // waits for what was begun
  EXPECT_GE(data.reads, 4);
  EXPECT_LE(data.reads, 12);
  EXPECT_GE(loader.waited(), 0);
}

std::weak_ptr<BatchData> keep(CopiedBatches& copies, CopiedBatches::Ended ended) {
  const auto batch = std::make_shared<BatchData>(2, 12, allocate_pageable);
  copies.keep(batch, std::move(ended));
  return batch;
}

TEST(CopiedBatches, KeepMemoryUntilTheCopyHasEnded) {
  CopiedBatches copies;
  std::vector<bool> ended(3, false);
  std::vector<std::weak_ptr<BatchData>> batches;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    batches.push_back(keep(copies, [&ended, i] { return ended[i]; }));
  }
  ended[1] = true;
  EXPECT_FALSE(batches[1].expired()) << "nobody has asked";
  copies.release();
  EXPECT_FALSE(batches[0].expired());
  EXPECT_TRUE(batches[1].expired());
  EXPECT_FALSE(batches[2].expired());
  ended.assign(3, true);
  copies.release();
  EXPECT_TRUE(batches[0].expired() && batches[2].expired());
}

TEST(CopiedBatches, WaitForTheCopiesAtTheirEndAndFreeNothingWhereOneFails) {
  int asked = 0;
  std::weak_ptr<BatchData> batch;
  {
    CopiedBatches copies;
    batch = keep(copies, [&] {
      if (++asked == 1) throw std::runtime_error("no device");
      return asked == 5;
    });
    EXPECT_THROW(copies.release(), std::runtime_error);
    EXPECT_FALSE(batch.expired());
  }
  EXPECT_EQ(asked, 5);
  EXPECT_TRUE(batch.expired());
}

}  // namespace
}  // namespace vision
