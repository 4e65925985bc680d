#include "examples/vision/train/training_state.h"

#include <stdexcept>

namespace vision {

TrainingState::TrainingState(const hora::Context& world, const TrainingStateOptions& options,
                             Classifier& model, hora::DistributedOptimizer& optimizer,
                             hora::GradScaler& scaler, WeightAverage* average,
                             hora::GradientHook* hook)
    : options_(options), average_(average) {
  if (options_.folder.empty() && options_.resume.empty()) return;
  checkpoint_.emplace(world,
                      hora::CheckpointOptions{.folder = options_.folder.empty() ? options_.resume
                                                                                : options_.folder});
  checkpoint_->add_weights(model);
  checkpoint_->add_optimizer("optimizer", optimizer);
  checkpoint_->add_scaler("scaler", scaler);
  if (average_ != nullptr) {
    checkpoint_->add_tensors("average", average_->tensors());
    checkpoint_->add_number("average_steps", average_steps_);
  }
  if (hook != nullptr) checkpoint_->add_hook("hook", *hook);
  checkpoint_->add_random_state();
  checkpoint_->add_number("best_accuracy", best_accuracy_);
}

std::string TrainingState::resume() {
  if (options_.resume.empty()) return {};
  const bool is_named = options_.resume != "auto";
  const std::string& folder = is_named ? options_.resume : options_.folder;
  const auto position = checkpoint_->load({.folder = folder});
  if (!position) {
    if (!is_named) return {};
    throw std::runtime_error("--resume " + folder + ": there is no checkpoint on any rank");
  }
  if (average_ != nullptr) average_->set_steps(average_steps_);
  epochs_ = static_cast<int>(position->epoch);
  return folder;
}

void TrainingState::epoch_done(std::optional<double> accuracy) {
  ++epochs_;
  const bool is_best = accuracy.value_or(0) > best_accuracy_;
  if (is_best) best_accuracy_ = *accuracy;
  if (average_ != nullptr) average_steps_ = average_->steps();
  if (!options_.folder.empty()) checkpoint_->save({.epoch = epochs_}, {.best = is_best});
}

void TrainingState::wait() {
  if (checkpoint_) checkpoint_->wait();
}

}  // namespace vision
