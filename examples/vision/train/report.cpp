#include "examples/vision/train/report.h"

#include <nlohmann/json.hpp>

namespace vision {

std::string to_json(const Report& report) {
  nlohmann::ordered_json json{
      {"best_accuracy", report.best_accuracy},
      {"images_per_second", report.images_per_second},
      {"hidden_share", report.hidden_share},
      {"ranks", report.ranks},
      {"nodes", report.nodes},
      {"data", report.data},
      {"epochs", report.epochs},
  };
  if (report.seconds_to_accuracy) json["seconds_to_accuracy"] = *report.seconds_to_accuracy;
  return json.dump(2) + "\n";
}

}  // namespace vision
