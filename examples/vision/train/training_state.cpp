#include "examples/vision/train/training_state.h"

#include <hora/phase.h>
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "examples/vision/train/program.h"
#include "examples/vision/train/steps.h"

namespace vision {
namespace {

namespace fs = std::filesystem;

/// Calls `visit` with each field's name in checkpoints.
template <class Progress, class Visit>
void visit_fields(Progress& progress, const Visit& visit) {
  visit("epoch", progress.position.epoch);
  visit("consumed", progress.position.consumed);
  visit("samples", progress.position.samples);
  visit("seed", progress.position.seed);
  visit("shuffle", progress.position.shuffle);
  visit("steps", progress.steps);
  visit("best_accuracy", progress.best_accuracy);
  visit("seconds", progress.seconds);
}

/// A JSON object, from which progress_from() gives the same values to the bit.
std::string to_text(const TrainingProgress& progress) {
  nlohmann::json json;
  visit_fields(progress, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

/// Throws nlohmann::json::exception for a text that is none of to_text().
void take_progress(const std::string& text, TrainingProgress& progress) {
  const nlohmann::json json = nlohmann::json::parse(text);
  visit_fields(progress, [&](const char* name, auto& value) { json.at(name).get_to(value); });
}

/// A folder's newest checkpoint, or FOLDER/last, FOLDER/previous or FOLDER/best.
hora::CheckpointLoadOptions find_checkpoint(const std::string& named) {
  fs::path path = fs::path(named).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a/best/
  const std::string slot = path.filename();
  if (slot != "last" && slot != "previous" && slot != "best") return {.folder = named};
  const fs::path above = path.parent_path();
  return {.folder = above.empty() ? "." : above.string(), .slot = slot};
}

std::string folder_of(const CheckpointOptions& options) {
  return options.folder.empty() && options.resume != "auto" ? options.resume : options.folder;
}

}  // namespace

std::string describe(const TrainingProgress& progress) {
  const hora::SamplerPosition& position = progress.position;
  if (position.consumed > 0) {
    return fmt::format("in epoch {}, after {} of {} images", position.epoch + 1, position.consumed,
                       position.samples);
  }
  return position.epoch == 0 ? "before epoch 1" : fmt::format("after epoch {}", position.epoch);
}

EpochSteps::EpochSteps(hora::DistributedSampler& sampler, const hora::SamplerPosition& position)
    : sampler_(sampler) {
  if (position.consumed == 0) {
    sampler.set_epoch(position.epoch);
    return;
  }
  sampler.restore(position);
  const std::size_t width =
      sampler.options().batch * static_cast<std::size_t>(sampler.options().size);
  const auto consumed = static_cast<std::size_t>(position.consumed);
  first_ = consumed / width;
  if (consumed % width != 0) return;
  sampler.set_epoch(position.epoch);
  first_of_samples_ = first_;
}

hora::SamplerPosition EpochSteps::after(std::size_t step) const {
  return sampler_.position(step + 1 - (first_ - first_of_samples_));
}

void check_unused(const CheckpointOptions& options) {
  const fs::path resume = options.resume;
  const auto is_resumed = [&](const fs::path& folder) {
    std::error_code ignored;
    return !resume.empty() && fs::equivalent(folder, options.folder, ignored);
  };
  if (options.folder.empty() || options.resume == "auto" || hora::generation() > 1 ||
      is_resumed(resume) || is_resumed((resume / "..").lexically_normal())) {
    return;
  }
  for (const char* slot : {"last", "previous", "best"}) {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(fs::path(options.folder) / slot, ignored))) continue;
    throw std::runtime_error("--model-dir " + options.folder + ": it has a training already (\"" +
                             slot + "\"); --resume auto goes on with it, or name another folder");
  }
}

TrainingState::TrainingState(const hora::Context& world, const CheckpointOptions& options,
                             torch::nn::Module& model, hora::DistributedOptimizer& optimizer,
                             hora::GradScaler& scaler, const hora::DistributedSampler& sampler,
                             hora::GradientHook* hook)
    : world_(world),
      options_(options),
      model_(model),
      sampler_(sampler),
      checkpoint_(world, {.folder = folder_of(options), .per_node = options.per_node}) {
  progress_.position = {.samples = sampler.samples(),
                        .seed = sampler.options().seed,
                        .shuffle = sampler.options().shuffle};
  checkpoint_.add_weights(model);
  checkpoint_.add_optimizer("optimizer", optimizer);
  checkpoint_.add_scaler("scaler", scaler);
  checkpoint_.add_random_state();
  const auto describe_progress = [this] {
    TrainingProgress saved = progress_;
    saved.seconds = seconds();
    return to_text(saved);
  };
  checkpoint_.add_text("progress", describe_progress,
                       [this](const std::string& text) { progress_text_ = text; });
  checkpoint_.add_number("loss", progress_.loss, hora::CheckpointScope::each_rank);
  checkpoint_.add_number("images", progress_.images, hora::CheckpointScope::each_rank);
  if (hook != nullptr) checkpoint_.add_hook("hook", *hook);
}

std::string TrainingState::resume() {
  if (options_.resume.empty()) return {};
  const bool is_named = options_.resume != "auto";
  const std::string& named = is_named ? options_.resume : options_.folder;
  hora::CheckpointLoadOptions from = find_checkpoint(named);
  from.allow_missing_parts = true;
  const auto refuse = [&](const std::string& reason) {
    throw CommonError("--resume " + options_.resume + reason);
  };
  try {
    if (!checkpoint_.load(from)) {
      if (!is_named) return {};
      refuse(
          ": there is no checkpoint on any rank; expected a folder of last, previous and best, "
          "or one of these");
    }
    take_progress(progress_text_, progress_);
    // Throws where the position is not this sampler's.
    hora::DistributedSampler sampler = sampler_;
    const EpochSteps steps(sampler, progress_.position);
  } catch (const nlohmann::json::exception& error) {
    refuse(": the checkpoint in " + named + " has no progress of a training; expected one that a " +
           "trainer has written (" + error.what() + ")");
  } catch (const hora::Error& error) {
    if (error.code() != hora::ErrorCode::invalid_argument) throw;
    refuse((progress_.steps > 0 ? ", " + describe(progress_) : "") + ": " + error.what());
  }
  seconds_before_ = progress_.seconds;
  if (named == options_.folder) saved_steps_ = progress_.steps;
  return named.empty() ? "memory" : named;
}

void TrainingState::step_done(const hora::SamplerPosition& reached, double loss,
                              std::int64_t images) {
  progress_.position = reached;
  ++progress_.steps;
  progress_.loss += loss * static_cast<double>(images);
  progress_.images += static_cast<double>(images);
  const auto every = static_cast<std::int64_t>(options_.every_steps);
  if (every > 0 && progress_.steps % every == 0) save();
  checkpoint_.commit({.step = progress_.steps, .epoch = epochs()});
}

void TrainingState::epoch_done(std::optional<double> accuracy) {
  ++progress_.position.epoch;
  progress_.position.consumed = 0;
  progress_.loss = progress_.images = 0;
  const bool is_best = accuracy.value_or(0) > progress_.best_accuracy;
  if (is_best) progress_.best_accuracy = *accuracy;
  save(is_best);
}

bool TrainingState::interrupted() {
  if (options_.folder.empty()) return false;
  if (saved_steps_ != progress_.steps) save();
  wait();
  return true;
}

void TrainingState::wait() {
  checkpoint_.wait();
}

double TrainingState::seconds() const {
  return seconds_before_ + seconds_since(start_);
}

void TrainingState::save(bool best) {
  if (options_.folder.empty()) return;
  // Each node saves its own, but BatchNorm's running statistics are rank 0's.
  if (options_.per_node) hora::broadcast_buffers(world_, model_, /*root=*/0);
  checkpoint_.save({.step = progress_.steps, .epoch = epochs()}, {.best = best});
  saved_steps_ = progress_.steps;
}

}  // namespace vision
