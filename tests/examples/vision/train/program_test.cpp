#include "examples/vision/train/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "tests/examples/vision/temporary_folder.h"
#include "tests/support/read_file.h"

namespace vision {
namespace {

using testing::HasSubstr;

TrainingOptions small_network() {
  TrainingOptions options;
  options.network.architecture = "resnet20";
  return options;
}

TEST(MakeClassifier, BeginsWithTheWeightsOfAFile) {
  const hora::Context world = hora::init();
  const test::TemporaryFolder folder;  // each rank's own: rank 0's is read
  TrainingOptions options = small_network();
  options.seed = 5;
  const auto saved = make_classifier(world, options, torch::kCPU, 4, 10);
  hora::save_safetensors((folder.path() / "weights").string(), hora::weights_of(*saved));
  options.seed = 6;
  options.network.weights = (folder.path() / "weights").string();
  const auto loaded = make_classifier(world, options, torch::kCPU, 4, 10);
  hora::broadcast_parameters(world, *loaded);
  const auto expected = saved->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(loaded->parameters()[i], expected[i])) << i;
  }
}

TEST(MakeClassifier, OfAnotherNumberOfClassesHasANewLastLayer) {
  const hora::Context world = hora::init();
  if (world.rank() != 0) GTEST_SKIP() << "rank 0 reads the file";
  const test::TemporaryFolder folder;
  TrainingOptions options = small_network();
  const auto saved = make_classifier(world, options, torch::kCPU, 4, 10);
  options.network.weights = (folder.path() / "weights").string();
  hora::save_safetensors(options.network.weights, hora::weights_of(*saved));
  testing::internal::CaptureStdout();
  const auto loaded = make_classifier(world, options, torch::kCPU, 5, 10)->named_parameters();
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("but for the last layer, which begins anew: 4 classes there, 5 here\n"));
  for (const auto& item : saved->named_parameters()) {
    EXPECT_EQ(torch::equal(loaded[item.key()], item.value()), item.key().substr(0, 3) != "fc.");
  }
  options.validation.only = true;  // what it would say is drawn
  EXPECT_THAT(test::message_of([&] { make_classifier(world, options, torch::kCPU, 5, 10); }),
              HasSubstr("fc."));
}

TEST(MakeClassifier, RunningStatisticsFollowShortEpochs) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_network();
  for (const bool sync : {false, true}) {
    options.distribution.sync_batch_norm = sync;
    const auto model = make_classifier(world, options, torch::kCPU, 4, /*steps_an_epoch=*/6);
    int norms = 0;
    for (const auto& module : model->modules()) {
      if (const auto* norm = module->as<torch::nn::BatchNorm2d>()) {
        EXPECT_FALSE(sync);
        EXPECT_DOUBLE_EQ(norm->options.momentum().value(), 0.5);
        ++norms;
      }
      if (const auto* norm = module->as<hora::SyncBatchNorm>()) {
        EXPECT_TRUE(sync);
        EXPECT_DOUBLE_EQ(norm->options.momentum().value(), 0.5);
        ++norms;
      }
    }
    EXPECT_EQ(norms, 19);
  }
}

TEST(WriteFile, ReplacesTheFileOrLeavesIt) {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "file";
  write_file(path, std::string("a\0b", 3));
  EXPECT_EQ(hora::internal::test::read_file(path), std::string("a\0b", 3));
  write_file(path, "x");
  EXPECT_EQ(hora::internal::test::read_file(path), "x");
  const std::string absent = (folder.path() / "absent" / "file").string();
  EXPECT_THAT(test::message_of([&] { write_file(absent, "x"); }), HasSubstr(absent));
  EXPECT_NE(test::message_of([&] { write_file(folder.path(), "x"); }), "");
  using Files = std::filesystem::directory_iterator;
  EXPECT_EQ(std::distance(Files(folder.path()), Files()), 1) << "a draft was left behind";
}

}  // namespace
}  // namespace vision
