// Options of DistributedOptimizer that differ between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

TEST(OptionsDisagreement, IsTheSameErrorEverywhere) {
  const Context world = init();
  const bool odd = world.rank() == 1;
  const auto differ = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(ErrorCode::mismatch, HasSubstr(text),
                 [&] { Training(world, odd ? options : DistributedOptimizerOptions{}); });
  };
  differ({.backward_passes_per_step = 2}, "backward_passes_per_step 2");
  differ({.gradient_predivide_factor = 2.0}, "gradient_predivide_factor 2");
  differ({.number_of_groups = 2}, "in group ");
  differ({.static_graph = true}, "static_graph 1");
  differ({.shard_state = true, .fused_update = true, .update_in_backward = true},
         "update_in_backward 1");
  differ({.buffers = {torch::zeros({2})}}, "'buffer 0' float32 [2]");
  Training(world).step(my_batch(world, 0));
}

}  // namespace
}  // namespace hora::internal::test
