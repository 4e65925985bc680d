#include "examples/cifar10/data_source.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <variant>

#include "examples/vision/data/cifar.h"
#include "tests/examples/vision/temporary_folder.h"

namespace cifar10 {
namespace {

using testing::HasSubstr;
using vision::test::message_of;
using vision::test::TemporaryFolder;

TEST(DataSource, DigitsAreNeitherFlippedNorCut) {
  for (const vision::DataKind kind : {vision::DataKind::cifar10, vision::DataKind::cifar100}) {
    EXPECT_TRUE(source_of(kind).flip);
    EXPECT_EQ(source_of(kind).crop_padding, 4);
  }
  EXPECT_FALSE(source_of(vision::DataKind::digits).flip);
  EXPECT_EQ(source_of(vision::DataKind::digits).crop_padding, 0);
}

TEST(DataSource, OnlyTrainingImagesAreChanged) {
  const DataSource& source = source_of(vision::DataKind::cifar10);
  const auto training = training_transform(source, vision::Layout::channels_last);
  EXPECT_TRUE(training.flip);
  EXPECT_EQ(std::get<vision::RandomCrop>(training.geometry).padding, 4);
  EXPECT_EQ(training.layout, vision::Layout::channels_last);
  const auto validation = validation_transform(source, vision::Layout::channels_first);
  EXPECT_FALSE(validation.flip);
  EXPECT_EQ(std::get<vision::Resize>(validation.geometry).size, (vision::ImageSize{side, side}));
  for (const auto& options : {training, validation}) {
    EXPECT_EQ(vision::output_size(options.geometry), (vision::ImageSize{side, side}));
    EXPECT_EQ(options.normalisation.mean, source.normalisation.mean);
    EXPECT_EQ(options.normalisation.deviation, source.normalisation.deviation);
  }
}

TEST(DataSource, RefusesLargerImages) {
  for (const vision::DataKind kind : {vision::DataKind::stl10, vision::DataKind::image_folder}) {
    EXPECT_THAT(message_of([&] { source_of(kind); }), HasSubstr("32 x 32 pixels"));
  }
}

TEST(LoadData, TakesTheFirstImagesOfBothParts) {
  const TemporaryFolder folder;
  constexpr std::size_t bytes = vision::cifar10_layout.bytes();
  for (const auto* part :
       {&vision::cifar10_records().training, &vision::cifar10_records().validation}) {
    for (const vision::RecordFile& file : *part) {
      std::ofstream(folder.path() / file.name) << std::string(2 * bytes, '\0');
    }
  }
  const Data data = load_data(folder.path(), 3);
  EXPECT_EQ(data.sets.training->size(), 3U);
  EXPECT_EQ(data.sets.validation->size(), 2U);
  EXPECT_EQ(data.sets.id(), "cifar10-subset");
  EXPECT_TRUE(data.source.flip);
}

}  // namespace
}  // namespace cifar10
