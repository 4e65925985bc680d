#include "examples/vision/logs/training_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace vision {
namespace {

using Json = nlohmann::ordered_json;

// A whole line at a time: a reader never sees half of one.
void write_line(LogFile& file, const Json& json) {
  // A path in the data's name may be no UTF-8.
  file.append(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.flush();
}

void add_if_known(Json& json, const char* name, const std::optional<double>& value) {
  if (value.has_value()) {
    json[name] = *value;
  }
}

}  // namespace

TrainingLog::TrainingLog(const LogTargets& targets)
    : every_(std::max<std::size_t>(targets.every, 1)) {
  if (!targets.json.empty()) {
    json_.emplace(targets.json,
                  targets.append ? LogFile::Existing::continued : LogFile::Existing::replaced);
  }
  if (!targets.tensorboard.empty()) {
    events_.emplace(targets.tensorboard);
  }
}

void TrainingLog::run(const TrainingRun& run) {
  images_a_step_ = run.batch * static_cast<std::size_t>(run.ranks);
  if (run.resumed) {
    steps_before_ = run.resumed->epochs * static_cast<std::int64_t>(run.steps);
  }
  if (json_.has_value()) {
    Json json{{"kind", "run"},      {"ranks", run.ranks},   {"nodes", run.nodes},
              {"batch", run.batch}, {"epochs", run.epochs}, {"steps", run.steps},
              {"data", run.data},   {"model", run.model}};
    if (run.resumed) {
      json["resumed_epoch"] = run.resumed->epochs;
      json["resumed_step"] = run.resumed->steps;
    }
    write_line(*json_, json);
  }
}

void TrainingLog::Sums::add(const TrainingStep& step) {
  ++steps;
  seconds += step.seconds;
  data_seconds += step.data_seconds;
  exposed_seconds += step.exposed_seconds;
  images_per_second += step.images_per_second;
  loss += step.loss;
  learning_rate += step.learning_rate;
  if (step.top1.has_value()) {
    top1 = top1.value_or(0) + *step.top1;
  }
  if (step.top5.has_value()) {
    top5 = top5.value_or(0) + *step.top5;
  }
  if (step.gpu_bytes.has_value()) {
    gpu_bytes = std::max(gpu_bytes.value_or(0), *step.gpu_bytes);
  }
}

void TrainingLog::step(const TrainingStep& step, Time now) {
  epoch_ = step.epoch;
  step_ = static_cast<std::int64_t>(step.step);
  entry_.add(step);
  whole_.add(step);
  if (entry_.steps >= every_ || step.step == step.steps) {
    write_step(step, now);
    entry_ = {};
  }
}

void TrainingLog::write_step(const TrainingStep& step, Time now) {
  const auto mean = [this](double sum) { return sum / static_cast<double>(entry_.steps); };
  const auto known_mean = [&](const std::optional<double>& sum) {
    return sum.has_value() ? std::optional(mean(*sum)) : std::nullopt;
  };
  if (json_.has_value()) {
    Json json{
        {"kind", "step"}, {"epoch", step.epoch}, {"step", step.step}, {"loss", mean(entry_.loss)}};
    add_if_known(json, "top1", known_mean(entry_.top1));
    add_if_known(json, "top5", known_mean(entry_.top5));
    json.update({{"learning_rate", mean(entry_.learning_rate)},
                 {"images_per_second", mean(entry_.images_per_second)},
                 {"seconds", mean(entry_.seconds)},
                 {"data_seconds", mean(entry_.data_seconds)},
                 {"exposed_seconds", mean(entry_.exposed_seconds)}});
    add_if_known(json, "gpu_bytes", entry_.gpu_bytes);
    write_line(*json_, json);
  }
  if (events_.has_value()) {
    const std::int64_t at = steps_before_ + step_;
    const auto add = [&](const char* tag, const std::optional<double>& value) {
      if (value.has_value()) {
        events_->add(tag, at, *value, now);
      }
    };
    add("loss/training", mean(entry_.loss));
    add("top1/training", known_mean(entry_.top1));
    add("top5/training", known_mean(entry_.top5));
    add("learning_rate", mean(entry_.learning_rate));
    add("images_per_second", mean(entry_.images_per_second));
    add("step_seconds/all", mean(entry_.seconds));
    add("step_seconds/data", mean(entry_.data_seconds));
    add("step_seconds/exposed_communication", mean(entry_.exposed_seconds));
    add("gpu_memory/peak_bytes", entry_.gpu_bytes);
  }
}

void TrainingLog::epoch(const EpochResult& result, Time now) {
  steps_before_ += step_;
  if (json_.has_value()) {
    Json json{{"kind", "epoch"}, {"epoch", epoch_}, {"loss", nullptr}};
    add_if_known(json, "loss", result.loss);
    add_if_known(json, "top1", result.top1);
    add_if_known(json, "top5", result.top5);
    json.update(
        {{"steps", whole_.steps},
         {"images_per_second", static_cast<double>(whole_.steps * images_a_step_) / whole_.seconds},
         {"seconds", whole_.seconds},
         {"data_seconds", whole_.data_seconds},
         {"exposed_seconds", whole_.exposed_seconds},
         {"validation_seconds", result.validation_seconds}});
    write_line(*json_, json);
  }
  if (events_.has_value()) {
    if (result.loss.has_value()) {
      events_->add("loss/epoch", steps_before_, *result.loss, now);
    }
    if (result.top1.has_value()) {
      events_->add("top1/validation", steps_before_, *result.top1, now);
    }
    if (result.top5.has_value()) {
      events_->add("top5/validation", steps_before_, *result.top5, now);
    }
    events_->flush();
  }
  whole_ = {};
  entry_ = {};
}

}  // namespace vision
