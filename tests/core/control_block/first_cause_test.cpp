#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/control_block/rank_status.h"

namespace hora::internal {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

class FirstCauseTest : public testing::Test {
 protected:
  std::unique_ptr<FirstCauseMemory> memory_ = std::make_unique<FirstCauseMemory>();
  FirstCause cause_{*memory_};
};

TEST_F(FirstCauseTest, HoldsAllThatTheErrorSays) {
  EXPECT_FALSE(cause_.is_published());
  EXPECT_FALSE(cause_.get());
  EXPECT_TRUE(cause_.publish(Error(ErrorCode::timeout, "too late", 3, "g")));
  EXPECT_TRUE(cause_.is_published());
  const Error error = FirstCause(*memory_).get().value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_STREQ(error.what(), "too late");
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.tensor(), "g");
}

TEST_F(FirstCauseTest, LaterCausesChangeNothing) {
  EXPECT_TRUE(cause_.publish(Error(ErrorCode::transport, "first")));
  EXPECT_FALSE(cause_.publish(Error(ErrorCode::timeout, "second", 1, "g")));
  EXPECT_STREQ(cause_.get()->what(), "first");
  EXPECT_EQ(cause_.get()->rank(), -1);
}

TEST_F(FirstCauseTest, OfManyThatTellAtOnceOneIsFirstAndWhole) {
  for (int round = 0; round < 200; ++round) {
    memory_ = std::make_unique<FirstCauseMemory>();
    std::atomic<int> first{0};
    std::vector<std::jthread> threads;
    for (int r = 0; r < 4; ++r) {
      threads.emplace_back([&, r] {
        FirstCause own(*memory_);
        const std::string text(100 + static_cast<std::size_t>(r), static_cast<char>('a' + r));
        if (own.publish(Error(ErrorCode::transport, text, r))) first.fetch_add(1);
        const Error seen = own.get().value();
        EXPECT_THAT(std::string(seen.what()), SizeIs(100 + static_cast<std::size_t>(seen.rank())));
        EXPECT_EQ(seen.what()[0], 'a' + seen.rank());
      });
    }
    threads.clear();
    EXPECT_EQ(first.load(), 1);
  }
}

TEST_F(FirstCauseTest, LongTextsAreCut) {
  EXPECT_TRUE(cause_.publish(
      Error(ErrorCode::transport, "begin" + std::string(9000, 'x'), -1, std::string(3000, 't'))));
  const Error error = cause_.get().value();
  EXPECT_THAT(error.what(), StartsWith("begin"));
  EXPECT_LE(std::string(error.what()).size(), memory_->text.size());
  EXPECT_THAT(error.tensor(), SizeIs(memory_->tensor.size()));
}

TEST_F(FirstCauseTest, ADamagedPageIsReadWithinItsBounds) {
  EXPECT_TRUE(cause_.publish(Error(ErrorCode::timeout, "text", 1, "g")));
  memory_->code = 77;
  memory_->text_bytes = 0xffffffffU;
  memory_->tensor_bytes = 1U << 20;
  const Error error = cause_.get().value();
  EXPECT_EQ(error.code(), ErrorCode::transport);
  EXPECT_THAT(error.what(), HasSubstr("text"));
  EXPECT_LE(error.tensor().size(), memory_->tensor.size());
}

TEST_F(FirstCauseTest, OneWhoDiesWhileTellingLeavesNothing) {
  memory_->state.store(FirstCauseMemory::kPublishing);
  EXPECT_FALSE(cause_.publish(Error(ErrorCode::transport, "own")));
  EXPECT_FALSE(cause_.get());
  EXPECT_FALSE(cause_.is_published());
}

}  // namespace
}  // namespace hora::internal
