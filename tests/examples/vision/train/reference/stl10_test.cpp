// From STL-10's files to losses, against Python's, by numbers that make_losses.py has made.
#include <gmock/gmock.h>
#include <hora/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "examples/vision/data/record_sets.h"
#include "tests/examples/vision/train/reference/training.h"
#include "tests/support/temporary_folder.h"

namespace vision::test {
namespace {

using hora::internal::test::TemporaryFolder;

nlohmann::json reference() {
  return nlohmann::json::parse(std::ifstream(LOSSES)).at("stl10");
}

void write(const std::string& path, std::span<const std::uint8_t> bytes) {
  std::ofstream(path, std::ios::binary) << std::string(bytes.begin(), bytes.end());
}

/// As `write_stl10` of make_losses.py; the first images are the test part's as well.
void write_stl10(const TemporaryFolder& folder, std::size_t images) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (std::size_t i = 0; i < images; ++i) {
    const std::vector<std::uint8_t> image = formula_pixels(i, stl10_size.width);
    pixels.insert(pixels.end(), image.begin(), image.end());
    labels.push_back(static_cast<std::uint8_t>(i % formula_classes + 1));
  }
  write(folder.file("train_X.bin"), pixels);
  write(folder.file("train_y.bin"), labels);
  write(folder.file("test_X.bin"), std::span(pixels).first(image_bytes(stl10_size)));
  write(folder.file("test_y.bin"), std::span(labels).first(1));
  std::ofstream names(folder.file("class_names.txt"));
  for (std::size_t i = 0; i < formula_classes; ++i) names << "class" << i << '\n';
}

TEST(Stl10Path, HasTheFirstTenLossesOfPython) {
  const hora::Context world = hora::init();
  const nlohmann::json expected = reference();
  const TemporaryFolder folder;
  write_stl10(folder, expected.at("images").get<std::size_t>());
  const DataSets data = open_stl10(folder.path());
  const Training training{.architecture = "resnet18",
                          .optimizer = {.momentum = 0.9, .weight_decay = 1e-4, .decay_all = true},
                          .schedule = {.rate = expected.at("rate").get<double>()},
                          .transform = {.geometry = Resize{{224, 224}}, .normalisation = halves()},
                          .batch = expected.at("batch").get<std::size_t>(),
                          .order = expected.at("order").get<std::vector<std::size_t>>()};
  const std::vector<double> losses = losses_of_ranks(world, training, *data.training);
  const auto wanted = expected.at("losses").get<std::vector<double>>();
  EXPECT_THAT(losses, testing::SizeIs(10));
  EXPECT_THAT(losses, testing::Pointwise(testing::DoubleNear(1e-4), wanted));
  largest_difference(world, "STL-10", losses, wanted);
}

TEST(Stl10Path, HasTheRatesOfPython) {
  constexpr std::int64_t steps = 156;
  const hora::LearningRateSchedule schedule({.rate = 0.1}, steps);
  EXPECT_DOUBLE_EQ(schedule.rate(30 * steps), 0.01);
  for (const auto& [epoch, rate] : reference().at("rates").items()) {
    const std::int64_t first = std::stoll(epoch) * steps;
    EXPECT_DOUBLE_EQ(schedule.rate(first), rate.get<double>()) << "epoch " << epoch;
    EXPECT_DOUBLE_EQ(schedule.rate(first + steps - 1), rate.get<double>()) << "epoch " << epoch;
  }
}

}  // namespace
}  // namespace vision::test
