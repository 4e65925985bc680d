#include "examples/cifar10/data_source.h"

#include <gmock/gmock.h>

#include <variant>

#include "tests/examples/vision/temporary_folder.h"

namespace cifar10 {
namespace {

using testing::HasSubstr;
using vision::test::message_of;

TEST(DataSource, DigitsAreNeitherFlippedNorCut) {
  for (const vision::DataKind kind : {vision::DataKind::cifar10, vision::DataKind::cifar100}) {
    EXPECT_TRUE(source_of(kind).flip);
    EXPECT_EQ(source_of(kind).crop_padding, 4);
  }
  EXPECT_FALSE(source_of(vision::DataKind::digits).flip);
  EXPECT_EQ(source_of(vision::DataKind::digits).crop_padding, 0);
}

TEST(DataSource, OnlyTrainingImagesAreChanged) {
  const auto [training, validation] = transforms(vision::DataKind::cifar10);
  EXPECT_TRUE(training.flip);
  EXPECT_EQ(std::get<vision::RandomCrop>(training.geometry).padding, 4);
  EXPECT_FALSE(validation.flip);
  EXPECT_EQ(std::get<vision::Resize>(validation.geometry).size, (vision::ImageSize{side, side}));
  const DataSource& source = source_of(vision::DataKind::cifar10);
  for (const auto& options : {training, validation}) {
    EXPECT_EQ(vision::output_size(options.geometry), (vision::ImageSize{side, side}));
    EXPECT_EQ(options.normalisation.mean, source.normalisation.mean);
    EXPECT_EQ(options.normalisation.deviation, source.normalisation.deviation);
  }
}

TEST(DataSource, RefusesLargerImages) {
  for (const vision::DataKind kind : {vision::DataKind::stl10, vision::DataKind::image_folder}) {
    EXPECT_THAT(message_of([&] { transforms(kind); }), HasSubstr("32 x 32 pixels"));
  }
}

}  // namespace
}  // namespace cifar10
