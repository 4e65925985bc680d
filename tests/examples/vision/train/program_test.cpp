#include "examples/vision/train/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "tests/examples/vision/temporary_folder.h"
#include "tests/frameworks/torch/network.h"
#include "tests/support/read_file.h"

namespace vision {
namespace {

using testing::HasSubstr;

class MakeClassifier : public testing::Test {
 protected:
  MakeClassifier() { options_.network.architecture = "resnet20"; }

  std::shared_ptr<Classifier> make(std::size_t classes, std::size_t steps_an_epoch = 10) const {
    return make_classifier(world_, options_, torch::kCPU, classes, steps_an_epoch);
  }
  /// A classifier that is saved as the weights of the next ones, of another seed.
  std::shared_ptr<Classifier> make_saved() {
    const auto saved = make(4);
    options_.network.weights = folder_.file("weights");
    hora::save_safetensors(options_.network.weights, hora::weights_of(*saved));
    ++options_.seed;
    return saved;
  }

  const hora::Context world_ = hora::init();
  const test::TemporaryFolder folder_;  // each rank's own: rank 0's is read
  TrainingOptions options_;
};

TEST_F(MakeClassifier, BeginsWithTheWeightsOfAFile) {
  const auto saved = make_saved();
  const auto loaded = make(4);
  hora::broadcast_parameters(world_, *loaded);
  hora::internal::test::expect_equal(loaded->parameters(), saved->parameters());
}

TEST_F(MakeClassifier, OfAnotherNumberOfClassesHasANewLastLayer) {
  if (world_.rank() != 0) GTEST_SKIP() << "rank 0 reads the file";
  const auto saved = make_saved();
  testing::internal::CaptureStdout();
  const auto loaded = make(5)->named_parameters();
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              HasSubstr("but for the last layer, which begins anew: 4 classes there, 5 here\n"));
  for (const auto& item : saved->named_parameters()) {
    EXPECT_EQ(torch::equal(loaded[item.key()], item.value()), item.key().substr(0, 3) != "fc.");
  }
  options_.validation.only = true;  // what it would say is drawn
  EXPECT_THAT(test::message_of([&] { make(5); }), HasSubstr("fc."));
}

TEST_F(MakeClassifier, RunningStatisticsFollowShortEpochs) {
  for (const bool sync : {false, true}) {
    options_.distribution.sync_batch_norm = sync;
    int norms = 0;
    int sync_norms = 0;
    const auto count = [](const auto* norm, int& counted) {
      if (norm == nullptr) return;
      EXPECT_DOUBLE_EQ(norm->options.momentum().value(), 0.5);
      ++counted;
    };
    for (const auto& module : make(4, /*steps_an_epoch=*/6)->modules()) {
      count(module->as<torch::nn::BatchNorm2d>(), norms);
      count(module->as<hora::SyncBatchNorm>(), sync_norms);
    }
    EXPECT_EQ(norms, sync ? 0 : 19);
    EXPECT_EQ(sync_norms, sync ? 19 : 0);
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
