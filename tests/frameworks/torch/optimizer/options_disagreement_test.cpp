// Options of DistributedOptimizer that differ between ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::EndsWith;

TEST(OptionsDisagreement, IsTheSameErrorEverywhere) {
  const Context world = init();
  const bool odd = world.rank() == 1;
  const auto differ = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(ErrorCode::mismatch, EndsWith(text + ". Every rank must construct the same one"),
                 [&] { Training(world, odd ? options : DistributedOptimizerOptions{}); });
  };
  differ({.backward_passes_per_step = 2},
         "rank 0 has backward_passes_per_step 1, rank 1 has backward_passes_per_step 2");
  differ({.gradient_predivide_factor = 2.0},
         "rank 0 has gradient_predivide_factor 1, rank 1 has gradient_predivide_factor 2");
  differ({.number_of_groups = 1}, "float32 [4, 3, 3, 3] in group 0");
  differ({.static_graph = true}, "rank 0 has static_graph 0, rank 1 has static_graph 1");
  differ({.sharding = Sharding::in_backward},
         "rank 0 has sharding off, rank 1 has sharding in_backward");
  differ({.buffers = {torch::zeros({2})}}, "rank 0 has none, rank 1 has 'buffer 0' float32 [2]");
  Training(world).step(my_batch(world, 0));
}

}  // namespace
}  // namespace hora::internal::test
