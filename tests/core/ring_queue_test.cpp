#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "core/base/sync.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(RingQueue, IsFirstInFirstOut) {
  RingQueue<int> queue;
  std::deque<int> model;
  auto random = test::generator();
  for (int i = 0; i < 10'000; ++i) {
    if (model.empty() || random() % 5 < 3) {
      queue.push() = i;
      model.push_back(i);
    } else {
      ASSERT_EQ(queue.front(), model.front());
      queue.pop();
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), model.size());
    if (!model.empty()) {
      const std::size_t at = random() % model.size();
      ASSERT_EQ(queue[at], model[at]);
    }
  }
}

TEST(RingQueue, GivesElementsOutAsTheyWereLeft) {
  RingQueue<std::vector<int>> queue;
  queue.push().resize(100);
  const int* const memory = queue.front().data();
  queue.front().clear();
  queue.pop();
  for (int i = 0; i < 7; ++i) {
    queue.push();
    queue.pop();
  }
  EXPECT_EQ(queue.push().data(), memory);
  EXPECT_TRUE(queue.empty() || queue.front().capacity() >= 100);
}

}  // namespace
}  // namespace hora::internal
