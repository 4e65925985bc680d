#include "examples/vision/data/copied_batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "examples/vision/data/loader.h"
#include "examples/vision/data/planar_images.h"

namespace vision {
namespace {

class CopiedBatchesTest : public testing::Test {
 protected:
  std::shared_ptr<BatchData> take() { return pool_->take(2); }
  /// What the pool gives next: memory that was used before, if any is free.
  const float* next_memory() { return pool_->take(2)->images().data(); }

  const std::shared_ptr<BatchPool> pool_ = std::make_shared<BatchPool>(2, 12, allocate_pageable);
};

TEST_F(CopiedBatchesTest, KeepMemoryUntilTheCopyHasEnded) {
  CopiedBatches copies;
  bool ended = false;
  auto batch = take();
  const float* const memory = batch->images().data();
  copies.keep(std::move(batch), [&] { return ended; });
  copies.release();
  EXPECT_NE(next_memory(), memory);
  const auto other = take();  // so that the pool has no other free memory
  ended = true;
  EXPECT_NE(next_memory(), memory) << "nobody has asked";
  const auto third = take();
  copies.release();
  EXPECT_EQ(next_memory(), memory);
}

TEST_F(CopiedBatchesTest, GiveBackEachBatchByItself) {
  CopiedBatches copies;
  std::vector<bool> ended(3, false);
  std::vector<std::weak_ptr<BatchData>> batches;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    auto batch = take();
    batches.emplace_back(batch);
    copies.keep(std::move(batch), [&ended, i] { return ended[i]; });
  }
  ended[1] = true;
  copies.release();
  EXPECT_FALSE(batches[0].expired());
  EXPECT_TRUE(batches[1].expired());
  EXPECT_FALSE(batches[2].expired());
  ended.assign(3, true);
  copies.release();
  EXPECT_TRUE(batches[0].expired() && batches[2].expired());
}

TEST_F(CopiedBatchesTest, WaitForTheCopiesAtTheirEnd) {
  int asked = 0;
  std::weak_ptr<BatchData> kept;
  {
    CopiedBatches copies;
    auto batch = take();
    kept = batch;
    copies.keep(std::move(batch), [&] { return ++asked == 5; });
  }
  EXPECT_EQ(asked, 5);
  EXPECT_TRUE(kept.expired());
}

TEST_F(CopiedBatchesTest, AnErrorGivesNothingBack) {
  CopiedBatches copies;
  bool fails = true;
  auto batch = take();
  const std::weak_ptr<BatchData> kept = batch;
  copies.keep(std::move(batch), [&] {
    if (fails) throw std::runtime_error("no device");
    return true;
  });
  EXPECT_THROW(copies.release(), std::runtime_error);
  EXPECT_FALSE(kept.expired());
  fails = false;
}

/// Reads a batch in another thread some time later, as a device does.
class SlowCopy {
 public:
  explicit SlowCopy(std::shared_ptr<BatchData> batch)
      : now_(batch->images().begin(), batch->images().end()),
        later_(std::make_shared<std::vector<float>>()),
        ended_(std::make_shared<std::atomic<bool>>(false)),
        reader_([from = batch->images(), later = later_, ended = ended_] {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          later->assign(from.begin(), from.end());
          *ended = true;
        }) {}

  CopiedBatches::Ended ended() const {
    return [ended = ended_] { return ended->load(); };
  }
  bool is_right() {
    reader_.join();
    return *later_ == now_;
  }

 private:
  std::vector<float> now_;
  std::shared_ptr<std::vector<float>> later_;
  std::shared_ptr<std::atomic<bool>> ended_;
  std::jthread reader_;
};

TEST(LoaderAndCopies, WorkersDoNotWriteWhereACopyReads) {
  constexpr std::size_t images = 64;
  PlanarRecords records{.files = {{"made", images}}, .pixels = {}, .labels = {}};
  for (std::size_t image = 0; image < images; ++image) {
    records.pixels.insert(records.pixels.end(), image_bytes({4, 4}),
                          static_cast<std::uint8_t>(image));
    records.labels.push_back(0);
  }
  const PlanarImages data("made images", {"a"}, {4, 4}, std::move(records));
  std::vector<std::size_t> order(images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::set<const float*> memory;
  std::vector<SlowCopy> slow;
  Loader loader(data, {.geometry = RandomCrop{{4, 4}}}, {.batch = 2, .workers = 2});
  CopiedBatches copies;
  loader.start(0, order);
  for (std::size_t step = 0; step < loader.steps(); ++step) {
    copies.release();
    const std::shared_ptr<BatchData> batch = loader.next();
    memory.insert(batch->images().data());
    slow.emplace_back(batch);
    copies.keep(batch, slow.back().ended());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // a step of the training
  }
  for (SlowCopy& copy : slow) EXPECT_TRUE(copy.is_right());
  copies.release();
  loader.start(1, order);
  EXPECT_TRUE(memory.contains(loader.next()->images().data())) << "it is not used again";
}

}  // namespace
}  // namespace vision
