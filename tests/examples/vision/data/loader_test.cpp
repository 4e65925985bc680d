#include "examples/vision/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>
#include <thread>

#include "tests/examples/vision/train/made_images.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using test::in_order;
using test::MadeImages;

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

std::vector<Seen> rest_of(Loader& loader) {
  std::vector<Seen> seen;
  while (const Batch batch = loader.next()) {
    seen.push_back({{batch->images().begin(), batch->images().end()},
                    {batch->labels().begin(), batch->labels().end()},
                    batch->replaced()});
  }
  return seen;
}

template <class Error>
std::string error_of_next(Loader& loader) {
  try {
    loader.next();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Loader, GivesTheSameBatchesWithAnyNumberOfWorkers) {
  const MadeImages data(103);
  const auto order = shuffled(103);
  std::vector<std::vector<Seen>> epochs;
  for (const int workers : {0, 1, 2, 5}) {
    Loader loader(data, augmented(), {.batch = 8, .workers = workers, .seed = 3});
    loader.start(0, order);
    EXPECT_EQ(loader.steps(), 13U);
    epochs.push_back(rest_of(loader));
    ASSERT_EQ(epochs.back().size(), 13U);
    EXPECT_EQ(epochs.back().back().labels.size(), 103U % 8);
    EXPECT_EQ(epochs.front(), epochs.back()) << workers << " workers";
    EXPECT_EQ(loader.next(), nullptr);
    loader.start(1, order);
    EXPECT_NE(epochs.front(), rest_of(loader)) << "the epoch changes nothing";
  }
  // Every image once, in order.
  std::size_t place = 0;
  for (const Seen& batch : epochs.front()) {
    for (const std::int64_t label : batch.labels) {
      EXPECT_EQ(label, data.label(order[place++]));
    }
  }
  EXPECT_EQ(place, 103U);
}

// As a training on fewer ranks, or in another order, has it.
TEST(Loader, AnImageDoesNotDependOnItsPlace) {
  const MadeImages data(12);
  Loader loader(data, augmented(), {.batch = 12, .workers = 2, .seed = 3});
  const auto order = shuffled(12);
  loader.start(5, order);
  Seen all = rest_of(loader).front();
  const std::size_t floats = all.images.size() / 12;
  for (std::size_t place = 0; place < order.size(); ++place) {
    loader.start(5, {order[place]});
    const Seen one = rest_of(loader).front();
    EXPECT_TRUE(std::equal(one.images.begin(), one.images.end(),
                           all.images.begin() + static_cast<std::ptrdiff_t>(place * floats)));
  }
}

TEST(Loader, BeginsAtAnyStep) {
  const MadeImages data(50);
  const auto order = shuffled(50);
  for (const int workers : {0, 2}) {
    Loader loader(data, augmented(), {.batch = 8, .workers = workers, .seed = 9});
    loader.start(2, order);
    const std::vector<Seen> whole = rest_of(loader);
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      loader.start(2, order, first);
      EXPECT_EQ(loader.steps(), whole.size());
      EXPECT_EQ(rest_of(loader),
                std::vector<Seen>(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
    }
  }
}

TEST(Loader, StartDropsWhatWasLeft) {
  const MadeImages data(64);
  Loader loader(data, augmented(), {.batch = 4, .workers = 3});
  const auto order = shuffled(64);
  loader.start(0, order);
  const std::vector<Seen> whole = rest_of(loader);
  for (int i = 0; i < 20; ++i) {
    loader.start(1, order);
    loader.next();
    loader.start(0, order);
    EXPECT_EQ(rest_of(loader), whole);
  }
}

TEST(Loader, RaisesABadImageInItsStep) {
  MadeImages data(40);
  const auto order = in_order(40);
  data.bad = {21, 22, 30};
  for (const int workers : {0, 1, 4}) {
    Loader loader(data, augmented(), {.batch = 10, .workers = workers});
    loader.start(0, order);
    EXPECT_NE(loader.next(), nullptr);
    EXPECT_NE(loader.next(), nullptr);
    EXPECT_EQ(error_of_next<BadImage>(loader), "image 21: made to be bad");
    EXPECT_EQ(loader.next(), nullptr);
    loader.start(1, order, 3);
    EXPECT_EQ(error_of_next<BadImage>(loader), "image 30: made to be bad");
    loader.start(1, order);
    EXPECT_NE(loader.next(), nullptr);
  }
}

TEST(Loader, ReplacesBadImagesByTheNextGoodOne) {
  MadeImages data(20);
  data.bad = {3, 7, 8, 9};
  const auto order = in_order(10);
  for (const int workers : {0, 3}) {
    std::multiset<std::string> log;
    Loader loader(data, augmented(),
                  {.batch = 5,
                   .workers = workers,
                   .bad_images = BadImages::skip,
                   .log = [&](const std::string& text) { log.insert(text); }});
    loader.start(4, order);
    const std::vector<Seen> seen = rest_of(loader);
    loader.start(4, {0, 1, 2, 4, 4, 5, 6, 0, 0, 0});
    std::vector<Seen> expected = rest_of(loader);
    expected[0].replaced = {3};
    expected[1].replaced = {2, 3, 4};
    EXPECT_EQ(seen, expected);
    loader.start(4, order);
    rest_of(loader);
    EXPECT_EQ(log,
              (std::multiset<std::string>{"image 3: made to be bad", "image 7: made to be bad",
                                          "image 8: made to be bad", "image 9: made to be bad"}));
  }
}

TEST(Loader, SaysThatNoImageIsGood) {
  MadeImages data(6);
  data.bad = {0, 1, 2, 3, 4, 5};
  Loader loader(data, augmented(), {.batch = 3, .workers = 2, .bad_images = BadImages::skip});
  loader.start(0, shuffled(6));
  EXPECT_NE(error_of_next<std::runtime_error>(loader).find("None of the 6 images of made images"),
            std::string::npos);
}

TEST(Loader, AnotherErrorOfAWorkerIsNeverSkipped) {
  MadeImages data(40);
  data.failing = 17;
  const auto order = in_order(40);
  for (const int workers : {0, 2}) {
    Loader loader(data, augmented(),
                  {.batch = 10, .workers = workers, .bad_images = BadImages::skip});
    loader.start(0, order);
    EXPECT_NE(loader.next(), nullptr);
    EXPECT_EQ(error_of_next<std::logic_error>(loader), "made to fail");
  }
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
    loader.start(0, shuffled(40));
    while (Batch batch = loader.next()) kept.push_back(std::move(batch));
  }
  EXPECT_EQ(kept.size(), 10U);
  for (const Batch& batch : kept) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch->images().data()) % 64, 0U);
    EXPECT_EQ(batch->labels().size(), 4U);
  }
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

Batch made_batch() {
  return std::make_shared<BatchData>(2, 12, allocate_pageable);
}

TEST(CopiedBatches, KeepMemoryUntilTheCopyHasEnded) {
  CopiedBatches copies;
  std::vector<bool> ended(3, false);
  std::vector<std::weak_ptr<BatchData>> batches;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    Batch batch = made_batch();
    batches.emplace_back(batch);
    copies.keep(std::move(batch), [&ended, i] { return ended[i]; });
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

TEST(CopiedBatches, WaitForTheCopiesAtTheirEnd) {
  int asked = 0;
  std::weak_ptr<BatchData> kept;
  {
    CopiedBatches copies;
    Batch batch = made_batch();
    kept = batch;
    copies.keep(std::move(batch), [&] { return ++asked == 5; });
  }
  EXPECT_EQ(asked, 5);
  EXPECT_TRUE(kept.expired());
}

TEST(CopiedBatches, AnErrorFreesNothing) {
  CopiedBatches copies;
  bool fails = true;
  Batch batch = made_batch();
  const std::weak_ptr<BatchData> kept = batch;
  copies.keep(std::move(batch), [&] {
    if (fails) throw std::runtime_error("no device");
    return true;
  });
  EXPECT_THROW(copies.release(), std::runtime_error);
  EXPECT_FALSE(kept.expired());
  fails = false;
}

TEST(LoaderAndCopies, WorkersDoNotWriteWhereACopyReads) {
  const MadeImages data(64);
  Loader loader(data, augmented(), {.batch = 2, .workers = 2});
  loader.start(0, in_order(64));
  CopiedBatches copies;
  for (std::vector<float> before; Batch batch = loader.next(); copies.release()) {
    before.assign(batch->images().begin(), batch->images().end());
    // Some time later, as a device does.
    const auto copy = std::async(std::launch::async, [before, from = batch->images()] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(10));
                        EXPECT_TRUE(std::ranges::equal(from, before));
                      }).share();
    copies.keep(std::move(batch), [copy] {
      return copy.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a step of the training
  }
}

}  // namespace
}  // namespace vision
