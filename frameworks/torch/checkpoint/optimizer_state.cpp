#include "frameworks/torch/checkpoint/optimizer_state.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "frameworks/torch/collectives/objects.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

using namespace torch::optim;

[[noreturn]] void refuse_state(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "the optimizer's state: " + what);
}

/// Calls `f.operator()<State, Optimizer>(name)` for each of LibTorch's classes.
template <class F>
void each_kind(const F& f) {
  f.template operator()<SGDParamState, SGD>("SGD");
  f.template operator()<AdamParamState, Adam>("Adam");
  f.template operator()<AdamWParamState, AdamW>("AdamW");
  f.template operator()<RMSpropParamState, RMSprop>("RMSprop");
  f.template operator()<AdagradParamState, Adagrad>("Adagrad");
  f.template operator()<LBFGSParamState, LBFGS>("LBFGS");
}

/// Calls `field(name, value)` for each field of a state class; but LBFGS's `al`: room for factors
/// that each step computes anew.
template <class State, class F>
void each_field(State& state, const F& field) {
  if constexpr (std::is_same_v<State, LBFGSParamState>) {
    field("func_evals", state.func_evals());
    field("n_iter", state.n_iter());
    field("t", state.t());
    field("prev_loss", state.prev_loss());
    field("d", state.d());
    field("H_diag", state.H_diag());
    field("prev_flat_grad", state.prev_flat_grad());
    field("old_dirs", state.old_dirs());
    field("old_stps", state.old_stps());
    field("ro", state.ro());
  } else {
    if constexpr (requires { state.step(); }) field("step", state.step());
    if constexpr (requires { state.exp_avg(); }) {
      field("exp_avg", state.exp_avg());
      field("exp_avg_sq", state.exp_avg_sq());
      field("max_exp_avg_sq", state.max_exp_avg_sq());
    }
    if constexpr (requires { state.square_avg(); }) field("square_avg", state.square_avg());
    if constexpr (requires { state.momentum_buffer(); }) {
      field("momentum_buffer", state.momentum_buffer());
    }
    if constexpr (requires { state.grad_avg(); }) field("grad_avg", state.grad_avg());
    if constexpr (requires { state.sum(); }) field("sum", state.sum());
  }
}

/// Calls `f(state, kind)` with the state's own class. False where it is unknown.
template <class F>
bool with_class(OptimizerParamState& state, const F& f) {
  bool known = false;
  each_kind([&]<class State, class>(const char* kind) {
    auto* const as = dynamic_cast<State*>(&state);
    if (as == nullptr) return;
    known = true;
    f(*as, kind);
  });
  return known;
}

std::unique_ptr<OptimizerParamState> new_state(const std::string& kind) {
  std::unique_ptr<OptimizerParamState> state;
  each_kind([&]<class State, class>(const char* name) {
    if (kind == name) state = std::make_unique<State>();
  });
  if (!state) refuse_state("a checkpoint of the unknown class " + in_quotes(kind));
  return state;
}

/// Empty for an optimizer of the program's own, whose state may be of any class.
std::string kind_of(const Optimizer& optimizer) {
  std::string kind;
  each_kind([&]<class, class Kind>(const char* name) {
    if (dynamic_cast<const Kind*>(&optimizer) != nullptr) kind = name;
  });
  return kind;
}

/// Puts fields into `entries`.
struct FieldWriter {
  NamedTensors& entries;
  const std::string& prefix;

  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) entries.insert(prefix + name, value);
  }
  void operator()(const char* name, std::int64_t value) const {
    entries.insert(prefix + name, at::scalar_tensor(value, at::kLong));
  }
  void operator()(const char* name, double value) const {
    entries.insert(prefix + name, at::scalar_tensor(value, at::kDouble));
  }
  void operator()(const char* name, const std::deque<at::Tensor>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      entries.insert(prefix + name + "." + std::to_string(i), values[i]);
    }
  }
};

std::string range_text(const OptimizerPiece& piece) {
  if (piece.is_whole()) return "";
  return "[" + std::to_string(piece.begin) + ":" +
         std::to_string(piece.begin + piece.stepped.numel()) + "]";
}

/// Sizes, then strides.
at::Tensor layout_of(const at::Tensor& tensor) {
  return at::stack(
      {at::tensor(tensor.sizes(), at::kLong), at::tensor(tensor.strides(), at::kLong)});
}

std::string group_key(std::size_t group) {
  return "groups/" + std::to_string(group);
}

/// One parameter's saved state.
struct SavedParameter {
  struct Range {
    std::int64_t end = 0;
    std::map<std::string, at::Tensor> fields;
  };
  at::Tensor layout;
  std::map<std::string, at::Tensor> fields;  ///< of the whole one
  std::map<std::int64_t, Range> ranges;      ///< by their begins, of elements of it

  bool is_cut() const { return !ranges.empty(); }
  const std::map<std::string, at::Tensor>& some_fields() const {
    return is_cut() ? ranges.begin()->second.fields : fields;
  }
};

/// "name[3:7]" as its name and range; nothing where there is no range.
std::optional<std::tuple<std::string, std::int64_t, std::int64_t>> cut_name(
    const std::string& text) {
  const auto open = text.rfind('[');
  const auto colon = text.rfind(':');
  if (open == std::string::npos || colon == std::string::npos || colon < open ||
      text.back() != ']') {
    return std::nullopt;
  }
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const char* const data = text.data();
  const auto first = std::from_chars(data + open + 1, data + colon, begin);
  const auto second = std::from_chars(data + colon + 1, data + text.size() - 1, end);
  if (first.ptr != data + colon || second.ptr != data + text.size() - 1) return std::nullopt;
  return std::tuple(text.substr(0, open), begin, end);
}

struct SavedState {
  std::string kind;
  std::map<std::string, at::Tensor> groups;
  std::map<std::string, SavedParameter> parameters;
};

void take_entry(SavedState& state, const std::string& key, const at::Tensor& value) {
  if (key == "kind") {
    state.kind = text_of(value);
    return;
  }
  const auto slash = key.rfind('/');
  if (slash == std::string::npos) refuse_state("its entry " + in_quotes(key) + " is none");
  const std::string name = key.substr(0, slash);
  const std::string field = key.substr(slash + 1);
  if (name == "groups") {
    state.groups.emplace(key, value);
  } else if (field == "layout") {
    state.parameters[name].layout = value;
  } else if (const auto cut = cut_name(name)) {
    const auto& [parameter, begin, end] = *cut;
    auto& range = state.parameters[parameter].ranges[begin];
    range.end = end;
    range.fields.emplace(field, value);
  } else {
    state.parameters[name].fields.emplace(field, value);
  }
}

/// The elements of all ranges, with the sizes and strides that they had.
at::Tensor assembled(const std::string& name, const SavedParameter& saved,
                     const std::string& field) {
  const auto wrong = [&] {
    refuse_state("of parameter " + in_quotes(name) +
                 " elements are missing: the shards of the checkpoint do not make it up");
  };
  if (!saved.layout.defined()) wrong();
  const at::Tensor layout = saved.layout.contiguous();
  const auto* const numbers = layout.data_ptr<std::int64_t>();
  const auto dimensions = layout.numel() / 2;
  const at::IntArrayRef sizes(numbers, static_cast<std::size_t>(dimensions));
  const at::IntArrayRef strides(numbers + dimensions, static_cast<std::size_t>(dimensions));
  const std::int64_t count = c10::multiply_integers(sizes);
  at::Tensor flat;
  std::int64_t end = 0;
  for (const auto& [begin, range] : saved.ranges) {
    const auto found = range.fields.find(field);
    if (begin != end || range.end > count || found == range.fields.end() ||
        found->second.numel() != range.end - begin) {
      wrong();
    }
    if (!flat.defined()) flat = at::empty({count}, found->second.options());
    flat.narrow(0, begin, range.end - begin).copy_(found->second.reshape({-1}));
    end = range.end;
  }
  if (end != count) wrong();
  return flat.as_strided(sizes, strides);
}

/// Sets fields of one piece from what was saved of its parameter.
struct FieldReader {
  const OptimizerPiece& piece;
  const SavedParameter& saved;
  bool elementwise;  ///< tensors are as the parameter

  const at::Tensor* found(const std::string& name) const {
    const auto& fields = saved.some_fields();
    const auto place = fields.find(name);
    return place == fields.end() ? nullptr : &place->second;
  }

  at::Tensor placed(const std::string& name, const at::Tensor& one) const {
    const at::Tensor whole = saved.is_cut() ? assembled(piece.name, saved, name) : one;
    if (!elementwise) return whole.to(piece.whole.device(), /*non_blocking=*/false, /*copy=*/true);
    if (whole.sizes() != piece.whole.sizes()) {
      refuse_state("of parameter " + in_quotes(piece.name) + " has another shape (" + name + ")");
    }
    const at::Tensor full =
        at::empty_like(piece.whole.detach(), at::TensorOptions(whole.scalar_type())).copy_(whole);
    if (piece.is_whole()) return full;
    return in_memory_order(full).narrow(0, piece.begin, piece.stepped.numel()).clone();
  }

  void operator()(const char* name, at::Tensor& value) const {
    if (const at::Tensor* one = found(name)) value = placed(name, *one);
  }
  void operator()(const char* name, std::int64_t& value) const {
    if (const at::Tensor* one = found(name)) value = one->item<std::int64_t>();
  }
  void operator()(const char* name, double& value) const {
    if (const at::Tensor* one = found(name)) value = one->item<double>();
  }
  void operator()(const char* name, std::deque<at::Tensor>& values) const {
    for (std::size_t i = 0;; ++i) {
      const std::string key = std::string(name) + "." + std::to_string(i);
      const at::Tensor* const one = found(key);
      if (!one) return;
      values.push_back(placed(key, *one));
    }
  }
};

void load_options(Optimizer& optimizer, const SavedState& saved) {
  auto& groups = optimizer.param_groups();
  if (saved.groups.size() != groups.size()) {
    refuse_state("the checkpoint has " + std::to_string(saved.groups.size()) +
                 " parameter groups, the optimizer " + std::to_string(groups.size()));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string bytes = text_of(saved.groups.at(group_key(i)));
    auto archive =
        archive_of(std::as_bytes(std::span(bytes.data(), bytes.size())),
                   {"the options of an optimizer", -1, ErrorCode::invalid_argument}, at::kCPU);
    groups[i].options().serialize(archive);
  }
}

}  // namespace

NamedTensors state_of(Optimizer& optimizer, std::span<const OptimizerPiece> pieces) {
  NamedTensors entries;
  std::string kind_of_state;
  for (const OptimizerPiece& piece : pieces) {
    if (!piece.is_whole()) entries.insert(piece.name + "/layout", layout_of(piece.whole));
    const auto found = optimizer.state().find(key_of(piece.stepped));
    if (found == optimizer.state().end()) continue;
    const std::string prefix = piece.name + range_text(piece) + "/";
    const bool known = with_class(*found->second, [&](auto& state, const char* kind) {
      kind_of_state = kind;
      each_field(state, FieldWriter{entries, prefix});
    });
    if (!known) {
      refuse_state("of parameter " + in_quotes(piece.name) +
                   " is of a class that is none of LibTorch's; save it by add_state()");
    }
  }
  if (!kind_of_state.empty()) entries.insert("kind", text_tensor(kind_of_state));
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::OutputArchive archive;
    optimizer.param_groups()[i].options().serialize(archive);
    entries.insert(group_key(i), text_tensor(archive_bytes(archive, group_key(i))));
  }
  return entries;
}

void load_state(Optimizer& optimizer, std::span<const OptimizerPiece> pieces,
                std::span<const NamedTensors> saved) {
  const at::NoGradGuard no_grad;
  SavedState state;
  for (const NamedTensors& entries : saved) {
    for (const auto& item : entries) take_entry(state, item.key(), item.value());
  }
  const std::string expected = kind_of(optimizer);
  if (!state.kind.empty() && !expected.empty() && state.kind != expected) {
    refuse_state("the checkpoint is of " + state.kind + ", the optimizer is " + expected);
  }
  load_options(optimizer, state);
  optimizer.state().clear();
  for (const OptimizerPiece& piece : pieces) {
    const auto found = state.parameters.find(piece.name);
    if (found == state.parameters.end() || found->second.some_fields().empty()) continue;
    auto loaded = new_state(state.kind);
    with_class(*loaded, [&](auto& of_class, const char* kind) {
      each_field(of_class, FieldReader{piece, found->second, std::string_view(kind) != "LBFGS"});
    });
    optimizer.state()[key_of(piece.stepped)] = std::move(loaded);
  }
}

}  // namespace hora::internal
