#include "examples/vision/train/training_progress.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace vision {

std::string describe(const TrainingProgress& progress) {
  const hora::SamplerPosition& position = progress.position;
  if (position.consumed > 0) {
    return "in epoch " + std::to_string(position.epoch + 1) + ", after " +
           std::to_string(position.consumed) + " of " + std::to_string(position.samples) +
           " images";
  }
  if (position.epoch == 0) return "before epoch 1";
  return "after epoch " + std::to_string(position.epoch);
}

std::string to_text(const TrainingProgress& progress) {
  const hora::SamplerPosition& position = progress.position;
  return nlohmann::json{{"epoch", position.epoch},
                        {"consumed", position.consumed},
                        {"samples", position.samples},
                        {"seed", position.seed},
                        {"shuffle", position.shuffle},
                        {"steps", progress.steps},
                        {"loss", progress.loss},
                        {"images", progress.images},
                        {"best_accuracy", progress.best_accuracy},
                        {"seconds", progress.seconds}}
      .dump();
}

TrainingProgress progress_from(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    TrainingProgress progress;
    json.at("epoch").get_to(progress.position.epoch);
    json.at("consumed").get_to(progress.position.consumed);
    json.at("samples").get_to(progress.position.samples);
    json.at("seed").get_to(progress.position.seed);
    json.at("shuffle").get_to(progress.position.shuffle);
    json.at("steps").get_to(progress.steps);
    json.at("loss").get_to(progress.loss);
    json.at("images").get_to(progress.images);
    json.at("best_accuracy").get_to(progress.best_accuracy);
    json.at("seconds").get_to(progress.seconds);
    return progress;
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(std::string("a training's progress in the checkpoint: ") +
                             error.what());
  }
}

}  // namespace vision
