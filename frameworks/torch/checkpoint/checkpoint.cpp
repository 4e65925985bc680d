#include <hora/error.h>
#include <hora/objects.h>
#include <hora/printable.h>
#include <hora/torch/checkpoint.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/diagnostics.h"
#include "frameworks/torch/checkpoint/checkpoint_folder.h"
#include "frameworks/torch/checkpoint/checkpoint_loader.h"
#include "frameworks/torch/checkpoint/checkpoint_parts.h"
#include "frameworks/torch/checkpoint/checkpoint_writer.h"
#include "frameworks/torch/checkpoint/tensor_image.h"

namespace hora {
using namespace internal;
namespace {

/// Entry of parts that have one.
constexpr const char* kValue = "value";

const CheckpointOptions& checked(const CheckpointOptions& options) {
  if (options.folder.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "Checkpoint: the folder has no name; give CheckpointOptions::folder");
  }
  if (options.timeout.count() <= 0) {
    throw Error(ErrorCode::invalid_argument, "Checkpoint: the timeout is " +
                                                 std::to_string(options.timeout.count()) +
                                                 " ms; expected more than 0");
  }
  return options;
}

void check_slot(const std::string& slot) {
  if (slot.empty() || slot == kLast || slot == kPrevious || slot == kBest) return;
  throw Error(ErrorCode::invalid_argument,
              "Checkpoint: there is no slot " + in_quotes(slot) +
                  "; expected \"last\", \"previous\", \"best\" or \"\"");
}

Checkpoint::Tensors one_value(const at::Tensor& value) {
  return {{kValue, value}};
}

const at::Tensor& value_in(const std::string& part, const Checkpoint::Tensors& tensors) {
  const at::Tensor* const value = tensors.find(kValue);
  if (value != nullptr) return *value;
  throw Error(ErrorCode::invalid_argument, "the part has no entry " + in_quotes(kValue), -1, part);
}

/// All of them, or none where one is missing or has another shape.
void copy_into(const Checkpoint::Tensors& own, const Checkpoint::Tensors& saved) {
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    const at::Tensor* const tensor = saved.find(item.key());
    if (tensor == nullptr || tensor->sizes() != item.value().sizes()) {
      throw Error(ErrorCode::invalid_argument,
                  tensor == nullptr ? "it has no tensor " + in_quotes(item.key())
                                    : "its tensor " + in_quotes(item.key()) + " has another shape");
    }
  }
  for (const auto& item : own) {
    at::Tensor into = item.value();
    into.copy_(saved[item.key()]);
  }
}

}  // namespace

struct Checkpoint::State {
  State(const Context& given, const CheckpointOptions& given_options)
      : context(given), options(checked(given_options)), writer(given, given_options) {}

  void add(CheckpointPart part) {
    check_not_begun();
    if (part.name.empty() || part.name.find('/') != std::string::npos || part.name == "ranks") {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: a part cannot have the name " + in_quotes(part.name) +
                      "; expected a text without '/' other than \"\" and \"ranks\"");
    }
    if (std::ranges::find(parts, part.name, &CheckpointPart::name) != parts.end()) {
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: there is a part " + in_quotes(part.name) + " already");
    }
    parts.push_back(std::move(part));
  }

  void check_not_begun() const {
    if (!begun) return;
    throw Error(ErrorCode::invalid_use,
                "Checkpoint: a part was added after save() or load(); add all of them before");
  }

  /// Throws what is wrong on any rank, on every rank.
  void agree(const std::string& problem) const {
    const auto problems =
        allgather_object(context, std::string_view(problem), {.name = "hora.checkpoint.loaded"});
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (problems[rank].empty()) continue;
      throw Error(ErrorCode::invalid_argument,
                  "Checkpoint: load() on rank " + std::to_string(rank) + ": " + problems[rank],
                  static_cast<int>(rank));
    }
  }

  /// Names what the checkpoint lacks; empty: nothing.
  std::string missing(const LoadedCheckpoint& loaded) const {
    std::string names;
    const auto add_name = [&](const std::string& name) {
      names += (names.empty() ? "" : ", ") + in_quotes(name);
    };
    if (module != nullptr && !loaded.weights) add_name(kWeightsFile);
    for (const CheckpointPart& part : parts) {
      if (!loaded.names.contains(part.name)) add_name(part.name);
    }
    return names;
  }

  void apply(LoadedCheckpoint& loaded) {
    if (module != nullptr && loaded.weights) load_weights(*module, *loaded.weights);
    for (const CheckpointPart& part : parts) {
      if (!loaded.names.contains(part.name)) continue;
      try {
        part.load(loaded.parts[part.name]);
      } catch (const std::exception& error) {
        throw Error(ErrorCode::invalid_argument,
                    "part " + in_quotes(part.name) + " does not fit: " + error.what());
      }
    }
  }

  const Context& context;
  const CheckpointOptions options;
  CheckpointWriter writer;
  std::vector<CheckpointPart> parts;
  torch::nn::Module* module = nullptr;
  bool begun = false;
};

Checkpoint::Checkpoint(const Context& context, const CheckpointOptions& options)
    : state_(std::make_unique<State>(context, options)) {}
Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

void Checkpoint::add_weights(torch::nn::Module& module) {
  state_->check_not_begun();
  if (state_->module != nullptr) {
    throw Error(ErrorCode::invalid_argument,
                "Checkpoint: it has the weights of a module already; add a second one's by "
                "add_tensors(name, weights_of(module))");
  }
  state_->module = &module;
}

void Checkpoint::add_optimizer(const std::string& name, DistributedOptimizer& optimizer) {
  state_->add(optimizer_part(state_->context, name, optimizer));
}

void Checkpoint::add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer,
                               const Tensors& named_parameters) {
  state_->add(optimizer_part(name, optimizer, named_parameters));
}

void Checkpoint::add_scaler(const std::string& name, GradScaler& scaler) {
  const auto save = [&scaler] {
    const GradScalerState now = scaler.state();
    return Tensors{{"scale", at::scalar_tensor(now.scale, at::kDouble)},
                   {"finite_steps", at::scalar_tensor(now.finite_steps, at::kLong)}};
  };
  const auto load = [&scaler](const Tensors& saved) {
    scaler.set_state({saved["scale"].item<double>(),
                      static_cast<int>(saved["finite_steps"].item<std::int64_t>())});
  };
  add_state(name, save, load);
}

void Checkpoint::add_hook(const std::string& name, GradientHook& hook) {
  state_->add(hook_part(state_->context, name, hook));
}

void Checkpoint::add_random_state() {
  state_->add(random_part(state_->context, "random_state"));
}

void Checkpoint::add_tensors(const std::string& name, const Tensors& tensors,
                             CheckpointScope scope) {
  add_state(
      name, [tensors] { return tensors; },
      [tensors](const Tensors& saved) { copy_into(tensors, saved); }, scope);
}

void Checkpoint::add_number(const std::string& name, std::int64_t& number, CheckpointScope scope) {
  add_state(
      name, [&number] { return one_value(at::scalar_tensor(number, at::kLong)); },
      [&number, name](const Tensors& saved) {
        number = value_in(name, saved).item<std::int64_t>();
      },
      scope);
}

void Checkpoint::add_number(const std::string& name, double& number, CheckpointScope scope) {
  add_state(
      name, [&number] { return one_value(at::scalar_tensor(number, at::kDouble)); },
      [&number, name](const Tensors& saved) { number = value_in(name, saved).item<double>(); },
      scope);
}

void Checkpoint::add_text(const std::string& name, const std::function<std::string()>& save,
                          const std::function<void(const std::string&)>& load,
                          CheckpointScope scope) {
  add_state(
      name, [save] { return one_value(text_tensor(save())); },
      [load, name](const Tensors& saved) { load(text_of(value_in(name, saved))); }, scope);
}

void Checkpoint::add_state(const std::string& name, const std::function<Tensors()>& save,
                           const std::function<void(const Tensors&)>& load, CheckpointScope scope) {
  state_->add(plain_part(state_->context.rank(), name, scope, save, load));
}

void Checkpoint::save(const CheckpointPosition& position, const CheckpointSaveOptions& options) {
  if (position.step < 0 || position.epoch < 0) {
    throw Error(ErrorCode::invalid_argument,
                "Checkpoint: save() of step " + std::to_string(position.step) + " of epoch " +
                    std::to_string(position.epoch) + "; expected 0 or more");
  }
  state_->begun = true;
  state_->writer.save(position, options.best, state_->parts, state_->module);
}

std::optional<CheckpointPosition> Checkpoint::load(const CheckpointLoadOptions& options) {
  check_slot(options.slot);
  state_->begun = true;
  state_->writer.wait();
  for (const CheckpointPart& part : state_->parts) part.prepare();
  const std::string& folder = options.folder.empty() ? state_->options.folder : options.folder;
  auto loaded = load_newest(state_->context, folder, options.slot, state_->options.timeout);
  if (!loaded) return std::nullopt;
  std::string problem;
  if (const std::string names = state_->missing(*loaded); !names.empty()) {
    const std::string text = "the checkpoint of " + loaded->from + " lacks " + names;
    if (!options.allow_missing_parts) {
      problem = text + "; add what it holds, or set allow_missing_parts";
    } else if (state_->context.rank() == 0) {
      log_warning("Checkpoint: " + text + ": it stays as it is");
    }
  }
  try {
    if (problem.empty()) state_->apply(*loaded);
  } catch (const std::exception& error) {
    problem = "the checkpoint of " + loaded->from + ": " + error.what();
  }
  state_->agree(problem);
  state_->writer.note_loaded(loaded->manifest.save, loaded->latest);
  return CheckpointPosition{loaded->manifest.step, loaded->manifest.epoch};
}

void Checkpoint::wait() {
  state_->writer.wait();
}

}  // namespace hora
