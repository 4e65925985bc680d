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

}  // namespace
}  // namespace vision
