#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <typeinfo>

#include "core/api/internals.h"
#include "core/base/diagnostics.h"
#include "core/base/text.h"
#include "frameworks/torch/optimizer/optimizer.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
bool evaluates_again(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
}

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& parameter = {}) {
  throw Error(ErrorCode::invalid_argument, "DistributedOptimizer: " + what, -1, parameter);
}

void check_averageable(const Parameter& parameter) {
  const torch::Tensor& tensor = parameter.tensor;
  const auto fail = [&](const std::string& what) {
    refuse("parameter '" + parameter.name + "' " + what, parameter.name);
  };
  if (tensor.layout() != torch::kStrided) fail("is sparse; expected a dense one");
  if (tensor.is_meta()) fail("is on meta, where it has no values; expected one with values");
  const auto type = to_data_type(tensor.scalar_type());
  if (!type || !is_floating_point(*type)) {
    fail(std::string("has type ") + torch::toString(tensor.scalar_type()) +
         "; expected float16, bfloat16, float32 or float64");
  }
}

const char* name_of(Sharding sharding) {
  constexpr const char* names[] = {"off", "state", "fused", "in_backward"};
  return names[static_cast<std::size_t>(sharding)];
}

/// A rank whose parameters all lie elsewhere has mostly not chosen its own GPU.
void check_devices(const Context& context, const std::vector<Parameter>& parameters) {
  const at::Device own = to_torch(context.device());
  const auto on_own = [&](const Parameter& each) { return each.tensor.device() == own; };
  if (std::any_of(parameters.begin(), parameters.end(), on_own)) return;
  for (const Parameter& parameter : parameters) {
    if (parameter.tensor.is_cpu()) continue;
    refuse(c10::str("parameter '", parameter.name, "' is on ", parameter.tensor.device(),
                    ", and none is on ", own,
                    ", this rank's device: use hora::local_device(), at least for some"),
           parameter.name);
  }
}

bool on_several_devices(const std::vector<Parameter>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& each) {
    return each.tensor.device() != parameters.front().tensor.device();
  });
}

std::size_t bucket_bytes(const Context& context, const DistributedOptimizerOptions& options,
                         const at::Device& device) {
  if (options.bucket_bytes != 0) return options.bucket_bytes;
  if (context.settings().bucket_size != 0) return context.settings().bucket_size;
  return std::size_t{device.is_cpu() && context.cross_size() == 1 ? 4U : 25U} << 20U;
}

/// Names all that the best form depends on.
std::string tuning_key(const Peers& peers, const std::vector<Parameter>& parameters,
                       const DistributedOptimizerOptions& options, const at::Device& device) {
  std::size_t bytes = 0;
  for (const Parameter& parameter : parameters) {
    bytes += static_cast<std::size_t>(parameter.tensor.nbytes());
  }
  return c10::str(parameters.size(), " parameters of ", bytes, " bytes on ",
                  name_of(to_device(device).kind), ", ", peers.size, " ranks, ",
                  peers.context.cross_size(), " nodes, compression ", name_of(options.compression));
}

/// Not where the program or the user has chosen a size, or where gradients must keep their buckets.
std::optional<TuningOptions> tuning_options(const Peers& peers,
                                            const std::vector<Parameter>& parameters,
                                            const DistributedOptimizerOptions& options,
                                            const std::string& name, const at::Device& device) {
  const Settings& settings = peers.context.settings();
  const bool chosen = options.bucket_bytes != 0 || settings.bucket_size != 0;
  if (settings.tuning.empty() || chosen) return std::nullopt;
  return TuningOptions{.name = name,
                       .usual = {bucket_bytes(peers.context, options, device),
                                 options.compression != Compression::none},
                       .file = settings.tuning == "on" ? "" : settings.tuning,
                       .holds_for = tuning_key(peers, parameters, options, device)};
}

void check_ranges(const DistributedOptimizerOptions& options) {
  if (options.op != ReduceOp::average && options.op != ReduceOp::sum &&
      options.op != ReduceOp::adasum) {
    refuse("op is " + std::string(name_of(options.op)) +
           ", which is not defined for gradients; expected average, sum or adasum");
  }
  constexpr std::size_t most = std::size_t{64} << 30U;  // as HORA_BUCKET_SIZE
  if (options.bucket_bytes > most) {
    refuse("bucket_bytes is " + std::to_string(options.bucket_bytes) + "; expected up to 64 GiB");
  }
  if (const std::string wrong = wrong_with(options.compression); !wrong.empty()) refuse(wrong);
  check_backward_passes(options.backward_passes_per_step);
  const double predivide = options.gradient_predivide_factor;
  if (!(predivide >= 0x1p-14 && predivide <= 0x1p14)) {
    refuse(c10::str("gradient_predivide_factor is ", predivide, "; expected 2^-14 to 2^14"));
  }
  if (options.number_of_groups < 0) {
    refuse(c10::str("number_of_groups is ", options.number_of_groups, "; expected 0 or more"));
  }
}

void check_combinations(const DistributedOptimizerOptions& options) {
  const auto exclude = [](bool both, const char* one, const char* other) {
    if (both) refuse(std::string(one) + " and " + other + " do not go together: leave out one");
  };
  const bool predivides = options.gradient_predivide_factor != 1.0;
  const bool plain = options.op == ReduceOp::average;
  const bool hooked = options.hook != nullptr;
  const bool sharded = options.sharding != Sharding::off;
  exclude(options.number_of_groups != 0 && !options.groups.empty(), "number_of_groups", "groups");
  exclude(predivides && !plain, "gradient_predivide_factor", "an op other than average");
  exclude(hooked && !plain, "hook", "an op other than average");
  exclude(hooked && predivides, "hook", "gradient_predivide_factor");
  exclude(hooked && sharded, "hook", "sharding");
  if (options.overlap_parameter_gather && !sharded) {
    refuse("overlap_parameter_gather is for sharding, which was not asked for");
  }
  exclude(sharded && options.op == ReduceOp::adasum, "sharding", "adasum");
  exclude(sharded && options.static_graph, "sharding", "static_graph");
  exclude(sharded && options.compression != Compression::none, "sharding", "compression");
}

void check_buffers(const std::vector<torch::Tensor>& buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].defined() && buffers[i].layout() == torch::kStrided) continue;
    refuse("buffer " + std::to_string(i) + " is undefined or sparse; expected a dense tensor");
  }
}

using Groups = std::vector<std::optional<std::size_t>>;

Groups listed_groups(const std::vector<Parameter>& parameters,
                     const std::vector<std::vector<torch::Tensor>>& lists) {
  Groups groups(parameters.size());
  for (std::size_t group = 0; group < lists.size(); ++group) {
    const std::string where = "groups[" + std::to_string(group) + "]";
    for (const torch::Tensor& tensor : lists[group]) {
      const auto found = std::ranges::find_if(
          parameters, [&](const Parameter& each) { return each.tensor.is_same(tensor); });
      if (found == parameters.end()) {
        refuse(where + " has a tensor that is no parameter of the wrapped optimizer");
      }
      auto& own = groups[static_cast<std::size_t>(found - parameters.begin())];
      if (own) refuse(where + " has parameter '" + found->name + "' again", found->name);
      own = group;
    }
  }
  return groups;
}

Groups groups_of(const std::vector<Parameter>& parameters,
                 const DistributedOptimizerOptions& options) {
  if (!options.groups.empty()) return listed_groups(parameters, options.groups);
  if (options.number_of_groups == 0) return {};
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters) {
    const DataType type = to_data_type(parameter.tensor.scalar_type()).value();
    sizes.push_back({type, static_cast<std::size_t>(parameter.tensor.nbytes()), type});
  }
  return equal_groups(sizes, static_cast<std::size_t>(options.number_of_groups));
}

/// A line each.
std::vector<std::string> described(const DistributedOptimizerOptions& options,
                                   const std::vector<Parameter>& parameters,
                                   const RoundOptions& rounds) {
  return {
      c10::str("buckets of ", rounds.buckets.bucket_bytes, " bytes"),
      c10::str("op ", name_of(options.op)),
      c10::str("compression ", name_of(options.compression)),
      c10::str("backward_passes_per_step ", options.backward_passes_per_step),
      c10::str("gradient_predivide_factor ", options.gradient_predivide_factor),
      c10::str("static_graph ", options.static_graph),
      c10::str("sharding ", name_of(options.sharding)),
      c10::str("overlap_parameter_gather ", options.overlap_parameter_gather),
      c10::str("updates with the averages ", rounds.buckets.fused),
      c10::str("compare_ranks ", options.compare_ranks),
      c10::str("hook ", options.hook ? options.hook->describe() : "none"),
      c10::str("gradients averaged on ", name_of(to_device(rounds.device).kind)),
      c10::str("parameters on ", on_several_devices(parameters) ? "several devices" : "one device"),
  };
}

/// Warns, too, of an option that does nothing with this optimizer.
void check_optimizer(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const DistributedOptimizerOptions& options) {
  if (options.sharding >= Sharding::fused && !is_of_hora_optim(optimizer) &&
      peers.rank_in_set == 0) {
    log_warning("DistributedOptimizer: sharding " + std::string(name_of(options.sharding)) +
                " does no more than state with " + c10::demangle(typeid(optimizer).name()) +
                "; it is for hora::optim::SGD, Adam and AdamW");
  }
  if (!evaluates_again(optimizer)) return;
  const auto exclude = [](bool chosen, const std::string& option, const std::string& why) {
    if (chosen) refuse("LBFGS and " + option + " do not go together: " + why);
  };
  exclude(options.sharding != Sharding::off, "sharding",
          "it compares gradients as a whole, not element by element");
  exclude(options.hook != nullptr, "hook",
          "its line search needs the gradient of the loss, not an approximation");
  exclude(options.op == ReduceOp::adasum, "adasum",
          "its line search needs the gradient of the loss, which adasum does not give");
}

void check_ranks_agree(const Peers& peers, const std::vector<Parameter>& parameters,
                       const DistributedOptimizerOptions& options, const RoundOptions& rounds) {
  const BucketOptions& buckets = rounds.buckets;
  std::vector<std::string> lines = described(options, parameters, rounds);
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    std::string line = describe(parameters[index].name, parameters[index].tensor);
    if (!buckets.groups.empty() && buckets.groups[index]) {
      line += " in group " + std::to_string(*buckets.groups[index]);
    }
    lines.push_back(std::move(line));
  }
  for (std::size_t i = 0; i < options.buffers.size(); ++i) {
    lines.push_back(describe("buffer " + std::to_string(i), options.buffers[i]));
  }
  check_agreement(
      peers,
      {"DistributedOptimizer's options or parameters", "Every rank must construct the same one"},
      buckets.name + ".parameters", lines);
}

}  // namespace

std::vector<Parameter> select_parameters(
    const Peers& peers, const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, torch::Tensor>& named,
    const DistributedOptimizerOptions& options) {
  check_optimizer(peers, optimizer, options);
  for (const auto& item : named) {
    if (!item.value().defined()) refuse("parameter '" + item.key() + "' is undefined", item.key());
  }
  auto selected = match_parameters(named, optimizer);
  // With sharding the groups of an optimizer that is wrapped hold this rank's shares, or
  // nothing.
  const bool wrapped = std::any_of(named.begin(), named.end(), [](const auto& item) {
    return GradientHooks::hooked(item.value());
  });
  if (wrapped && (!selected || selected->empty())) {
    refuse(
        "the optimizer, or its parameters, belong to another DistributedOptimizer; wrap each "
        "optimizer once, and destroy the former wrapper before another is made");
  }
  if (!selected) refuse(selected.error());
  for (const Parameter& parameter : *selected) check_averageable(parameter);
  check_devices(peers.context, *selected);
  return *std::move(selected);
}

void check_backward_passes(int passes) {
  if (passes >= 1) return;
  refuse("backward_passes_per_step is " + std::to_string(passes) + "; expected 1 or more");
}

RoundOptions round_options(const Peers& peers, const torch::optim::Optimizer& optimizer,
                           const std::vector<Parameter>& parameters,
                           const DistributedOptimizerOptions& options) {
  const std::string name =
      std::string(kGradientsName) +
      std::to_string(Access::next_instance_number(peers.context, options.process_set));
  check_ranges(options);
  check_combinations(options);
  check_buffers(options.buffers);
  const bool sharded = options.sharding != Sharding::off;
  if (sharded && on_several_devices(parameters)) {
    refuse("sharding and parameters on several devices do not go together: leave out one");
  }
  const at::Device device = working_device(peers.context, tensors_of(parameters));
  const bool fuses =
      options.sharding >= Sharding::fused && can_fuse_update(peers, optimizer, parameters);
  RoundOptions rounds{.buckets = {.name = name,
                                  .bucket_bytes = bucket_bytes(peers.context, options, device),
                                  .compression = options.compression,
                                  .op = options.op,
                                  .predivide = options.gradient_predivide_factor,
                                  .sharded = sharded,
                                  .fused = fuses,
                                  .hook = options.hook,
                                  .groups = groups_of(parameters, options)},
                      .device = device,
                      .backward_passes_per_step = options.backward_passes_per_step,
                      .sparse_as_dense = options.sparse_as_dense,
                      .static_graph = options.static_graph,
                      .updates_in_backward = options.sharding == Sharding::in_backward,
                      .tuning = tuning_options(peers, parameters, options, name, device)};
  check_ranks_agree(peers, parameters, options, rounds);
  return rounds;
}

}  // namespace hora::internal
