#include "core/tensor_text.h"

#include <gtest/gtest.h>

namespace hora {
namespace {

TEST(TensorText, NamesAreQuoted) {
  EXPECT_EQ(tensor_text("weight"), "tensor \"weight\"");
  EXPECT_EQ(tensor_text("a\nb"), "tensor \"a\\nb\"");
}

TEST(TensorText, WithoutANameItSaysWhatWasCalled) {
  EXPECT_EQ(tensor_text(""), "an unnamed tensor");
  EXPECT_EQ(tensor_text("hora.unnamed.allreduce.0"), "the unnamed allreduce");
  EXPECT_EQ(tensor_text("hora.unnamed.barrier.1"), "the unnamed barrier in slot 1");
  EXPECT_EQ(tensor_text("hora.unnamed."), "the unnamed ");
}

TEST(TensorText, OwnCalls) {
  EXPECT_EQ(tensor_text("hora.join"), "join()");
  EXPECT_EQ(tensor_text("hora.process_sets.add"), "add_process_set()");
  EXPECT_EQ(tensor_text("hora.process_sets.remove"), "remove_process_set()");
  EXPECT_EQ(tensor_text("hora.joined"), "tensor \"hora.joined\"");
}

}  // namespace
}  // namespace hora
