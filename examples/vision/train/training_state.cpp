#include "examples/vision/train/training_state.h"

#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/torch/module.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "examples/vision/train/common_error.h"
#include "examples/vision/train/epoch_steps.h"

namespace vision {
namespace {

/// A folder of checkpoints, and which of them is meant; an empty slot: the newest.
struct Place {
  std::string folder;
  std::string slot;
};

/// Collective: a folder that is a checkpoint on any rank is one on all, for nodes may have lost
/// theirs.
Place place_of(const hora::Context& world, const std::string& named) {
  std::filesystem::path path = std::filesystem::path(named).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a/best/
  std::error_code ignored;
  auto is_checkpoint =
      static_cast<std::int64_t>(std::filesystem::exists(path / "manifest.json", ignored));
  hora::allreduce(world, hora::view(&is_checkpoint, 1),
                  {.name = "resume", .op = hora::ReduceOp::max});
  if (is_checkpoint == 0) return {named, {}};
  const std::string slot = path.filename();
  if (slot != "last" && slot != "previous" && slot != "best") {
    throw CommonError("--resume " + named + ": it is a checkpoint without its name; expected " +
                      "last, previous or best; rename it");
  }
  const std::filesystem::path above = path.parent_path();
  return {above.empty() ? "." : above.string(), slot};
}

}  // namespace

void check_unused(const TrainingStateOptions& options) {
  namespace fs = std::filesystem;
  const fs::path resume = options.resume;
  const auto is_resumed = [&](const fs::path& folder) {
    std::error_code ignored;
    return !resume.empty() && fs::equivalent(folder, options.folder, ignored);
  };
  if (options.folder.empty() || options.resume == "auto" || is_resumed(resume) ||
      is_resumed((resume / "..").lexically_normal())) {
    return;
  }
  for (const char* slot : {"last", "previous", "best"}) {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(fs::path(options.folder) / slot, ignored))) continue;
    throw std::runtime_error("--model-dir " + options.folder + ": it has a training already (\"" +
                             slot + "\"); --resume auto goes on with it, or name another folder");
  }
}

TrainingState::TrainingState(const hora::Context& world, const TrainingStateOptions& options,
                             const TrainingParts& parts)
    : world_(world), options_(options), parts_(parts) {
  progress_.position = {.samples = parts.sampler.samples(),
                        .seed = parts.sampler.options().seed,
                        .shuffle = parts.sampler.options().shuffle};
  if (options_.folder.empty() && options_.resume.empty()) return;
  checkpoint_.emplace(
      world,
      hora::CheckpointOptions{.folder = options_.folder.empty() ? options_.resume : options_.folder,
                              .per_node = options_.per_node});
  checkpoint_->add_weights(parts_.model);
  checkpoint_->add_optimizer("optimizer", parts_.optimizer);
  checkpoint_->add_scaler("scaler", parts_.scaler);
  checkpoint_->add_random_state();
  checkpoint_->add_text(
      "progress", [this] { return progress_text_; },
      [this](const std::string& text) { progress_text_ = text; });
  if (parts_.hook != nullptr) checkpoint_->add_hook("hook", *parts_.hook);
}

std::string TrainingState::resume() {
  if (options_.resume.empty()) return {};
  const bool is_named = options_.resume != "auto";
  const std::string& named = is_named ? options_.resume : options_.folder;
  const Place place = is_named ? place_of(world_, named) : Place{named, {}};
  std::optional<hora::CheckpointPosition> position;
  try {
    position = checkpoint_->load(
        {.folder = place.folder, .slot = place.slot, .allow_missing_parts = true});
  } catch (const hora::Error& error) {
    if (error.code() != hora::ErrorCode::invalid_argument) throw;
    throw CommonError("--resume " + options_.resume + ": " + error.what());
  }
  if (!position) {
    if (!is_named) return {};
    throw CommonError("--resume " + named + ": there is no checkpoint on any rank");
  }
  if (progress_text_.empty()) {
    throw CommonError("--resume " + named +
                      ": the checkpoint there has no progress of a training; expected one that a "
                      "trainer has written");
  }
  progress_ = progress_from(progress_text_);
  progress_.loss /= world_.size();
  progress_.images /= world_.size();
  seconds_before_ = progress_.seconds;
  if (named == options_.folder) saved_steps_ = progress_.steps;
  check_position(named);
  return named;
}

void TrainingState::check_position(const std::string& folder) const {
  hora::DistributedSampler sampler = parts_.sampler;
  try {
    const EpochSteps steps(sampler, progress_.position);
  } catch (const hora::Error& error) {
    throw CommonError("--resume " + folder + ", " + describe(progress_) + ": " + error.what());
  }
}

void TrainingState::step_done(const hora::SamplerPosition& reached, double loss,
                              std::int64_t images) {
  progress_.position = reached;
  ++progress_.steps;
  progress_.loss += loss * static_cast<double>(images);
  progress_.images += static_cast<double>(images);
  if (options_.every_steps > 0 && progress_.steps % options_.every_steps == 0) save();
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
  if (checkpoint_) checkpoint_->wait();
}

double TrainingState::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - start_).count();
}

void TrainingState::save(bool best) {
  if (options_.folder.empty()) return;
  std::array sums{progress_.loss, progress_.images};
  hora::allreduce(world_, hora::view(sums.data(), std::int64_t{sums.size()}),
                  {.name = "sums of the epoch", .op = hora::ReduceOp::sum});
  TrainingProgress all = progress_;
  all.loss = sums[0];
  all.images = sums[1];
  all.seconds = seconds();
  progress_text_ = to_text(all);
  // Each node saves its own, but those of rank 0 are the training's (BatchNorm's statistics).
  if (options_.per_node) hora::broadcast_buffers(world_, parts_.model, /*root=*/0);
  checkpoint_->save({.step = progress_.steps, .epoch = epochs()}, {.best = best});
  saved_steps_ = progress_.steps;
}

}  // namespace vision
