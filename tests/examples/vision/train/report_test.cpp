#include "examples/vision/train/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vision {
namespace {

TEST(Report, HasTheFieldsOfTheRun) {
  const auto json = nlohmann::json::parse(to_json({.best_accuracy = 97.25,
                                                   .images_per_second = 86.5,
                                                   .hidden_share = 0.75,
                                                   .ranks = 4,
                                                   .nodes = 2,
                                                   .data = "digits",
                                                   .epochs = 3}));
  EXPECT_EQ(json, (nlohmann::json{{"best_accuracy", 97.25},
                                  {"images_per_second", 86.5},
                                  {"hidden_share", 0.75},
                                  {"ranks", 4},
                                  {"nodes", 2},
                                  {"data", "digits"},
                                  {"epochs", 3}}));
}

TEST(Report, HasTheTimeToTheDesiredAccuracyWhereItWasReached) {
  const auto json = nlohmann::json::parse(to_json({.seconds_to_accuracy = 12.5}));
  EXPECT_EQ(json.at("seconds_to_accuracy"), 12.5);
}

}  // namespace
}  // namespace vision
