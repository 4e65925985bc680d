#include <hora/error.h>
#include <hora/printable.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <sstream>

#include "core/base/checked.h"
#include "frameworks/torch/checkpoint/named_tensors.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

using namespace torch::optim;
using Fields = std::map<std::string, at::Tensor>;

template <class... Parts>
[[noreturn]] void refuse_state(const Parts&... parts) {
  refuse_argument("the optimizer's state: ", parts...);
}

/// Calls `f.operator()<State, Optimizer, Options>(name)` for each of LibTorch's classes.
template <class F>
void each_kind(const F& f) {
  f.template operator()<SGDParamState, SGD, SGDOptions>("SGD");
  f.template operator()<AdamParamState, Adam, AdamOptions>("Adam");
  f.template operator()<AdamWParamState, AdamW, AdamWOptions>("AdamW");
  f.template operator()<RMSpropParamState, RMSprop, RMSpropOptions>("RMSprop");
  f.template operator()<AdagradParamState, Adagrad, AdagradOptions>("Adagrad");
  f.template operator()<LBFGSParamState, LBFGS, LBFGSOptions>("LBFGS");
}

/// Calls `field(name, value)` for each field that the class has; but LBFGS's `al`: room for factors
/// that each step computes anew.
template <class State, class F>
void each_field(State& state, const F& field) {
#define HORA_FIELD(name) \
  if constexpr (requires { state.name(); }) field(#name, state.name())
  HORA_FIELD(step);
  HORA_FIELD(exp_avg);
  HORA_FIELD(exp_avg_sq);
  HORA_FIELD(max_exp_avg_sq);
  HORA_FIELD(square_avg);
  HORA_FIELD(momentum_buffer);
  HORA_FIELD(grad_avg);
  HORA_FIELD(sum);
  HORA_FIELD(func_evals);
  HORA_FIELD(n_iter);
  HORA_FIELD(t);
  HORA_FIELD(prev_loss);
  HORA_FIELD(d);
  HORA_FIELD(H_diag);
  HORA_FIELD(prev_flat_grad);
  HORA_FIELD(old_dirs);
  HORA_FIELD(old_stps);
  HORA_FIELD(ro);
#undef HORA_FIELD
}

/// Calls `f(state, kind)` with the state's own class. False where it is unknown.
template <class F>
bool with_class(OptimizerParamState& state, const F& f) {
  bool known = false;
  each_kind([&]<class State, class, class>(const char* kind) {
    auto* const as = dynamic_cast<State*>(&state);
    if (as == nullptr) return;
    known = true;
    f(*as, kind);
  });
  return known;
}

std::unique_ptr<OptimizerParamState> new_state(const std::string& kind) {
  std::unique_ptr<OptimizerParamState> state;
  each_kind([&]<class State, class, class>(const char* name) {
    if (kind == name) state = std::make_unique<State>();
  });
  if (!state) refuse_state("a checkpoint of the unknown class " + in_quotes(kind));
  return state;
}

/// Empty for an optimizer of the program's own, whose state may be of any class.
std::string kind_of(const Optimizer& optimizer) {
  std::string kind;
  each_kind([&]<class, class Kind, class>(const char* name) {
    if (dynamic_cast<const Kind*>(&optimizer) != nullptr) kind = name;
  });
  return kind;
}

// The options of a group: how many there are; of each the name, a 0, its kind and its value. A text
// is its length and bytes. The numbers are part of files: append, never reorder.

enum class Kind : std::uint8_t {
  none = 0,
  integer = 3,
  real = 4,
  boolean = 5,
  text = 6,
  tuple = 12
};

template <class T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& bytes, const std::string& text) {
  put(bytes, std::uint64_t{text.size()});
  bytes += text;
}

void put_value(std::string& bytes, const c10::IValue& value) {
  if (value.isNone()) {
    put(bytes, Kind::none);
  } else if (value.isInt()) {
    put(bytes, Kind::integer);
    put(bytes, value.toInt());
  } else if (value.isDouble()) {
    put(bytes, Kind::real);
    put(bytes, value.toDouble());
  } else if (value.isBool()) {
    put(bytes, Kind::boolean);
    put(bytes, static_cast<std::uint8_t>(value.toBool()));
  } else if (value.isString()) {
    put(bytes, Kind::text);
    put_text(bytes, value.toStringRef());
  } else if (value.isTuple()) {
    put(bytes, Kind::tuple);
    const auto tuple = value.toTuple();
    put(bytes, std::uint64_t{tuple->elements().size()});
    for (const c10::IValue& element : tuple->elements()) put_value(bytes, element);
  } else {
    refuse_state("an option is a " + value.tagKind() +
                 "; expected numbers, texts, or tuples of them");
  }
}

c10::IValue take_value(BoundedReader& reader, int depth = 0) {
  switch (reader.take<Kind>()) {
    case Kind::none:
      return {};
    case Kind::integer:
      return reader.take<std::int64_t>();
    case Kind::real:
      return reader.take<double>();
    case Kind::boolean:
      return reader.take<std::uint8_t>() != 0;
    case Kind::text:
      return reader.take_text();
    case Kind::tuple: {
      if (depth > 8) reader.refuse("tuples are nested too deep");
      std::vector<c10::IValue> values(reader.take_count(1));
      for (c10::IValue& value : values) value = take_value(reader, depth + 1);
      return c10::ivalue::Tuple::create(std::move(values));
    }
  }
  reader.refuse("an option of an unknown kind");
}

torch::serialize::InputArchive reopened(torch::serialize::OutputArchive& archive) {
  std::stringstream stream;
  archive.save_to(stream);
  torch::serialize::InputArchive result;
  result.load_from(stream);
  return result;
}

std::string options_bytes(const OptimizerOptions& options) {
  torch::serialize::OutputArchive written;
  options.serialize(written);
  auto archive = reopened(written);
  const std::vector<std::string> keys = archive.keys();
  std::string bytes;
  put(bytes, std::uint64_t{keys.size()});
  for (const std::string& key : keys) {
    c10::IValue value;
    archive.read(key, value);
    put_text(bytes, key);
    put(bytes, std::uint8_t{0});
    put_value(bytes, value);
  }
  return bytes;
}

void load_options(OptimizerOptions& options, const std::string& bytes) {
  BoundedReader reader(std::as_bytes(std::span(bytes)),
                       {"the options of an optimizer", -1, ErrorCode::invalid_argument});
  torch::serialize::OutputArchive archive;
  for (std::size_t left = reader.take_count(10); left > 0; --left) {
    const std::string key = reader.take_text();
    // LibTorch turns keys into quoted text of TorchScript, which it then parses.
    const bool plain =
        std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (key.empty() || !plain || reader.take<std::uint8_t>() != 0) {
      reader.refuse("the entry " + in_quotes(key) + " is no option");
    }
    archive.write(key, take_value(reader));
  }
  reader.expect_end();
  auto read = reopened(archive);
  options.serialize(read);
}

/// One parameter's saved state.
struct SavedParameter {
  struct Range {
    std::int64_t end = 0;  ///< -1: the whole parameter
    Fields fields;
  };
  at::Tensor layout;
  std::map<std::int64_t, Range> ranges;  ///< by their begins, of elements of it

  bool is_cut() const { return ranges.begin()->second.end >= 0; }
};

struct SavedState {
  std::string kind;
  Fields groups;
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
  const auto open = std::min(name.rfind('['), name.size());
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int length = 0;
  if (name == "groups") {
    state.groups.emplace(key, value);
  } else if (field == "layout") {
    state.parameters[name].layout = value;
  } else if (std::sscanf(name.c_str() + open, "[%" SCNd64 ":%" SCNd64 "]%n", &begin, &end,
                         &length) == 2 &&
             open + static_cast<std::size_t>(length) == name.size()) {
    auto& range = state.parameters[name.substr(0, open)].ranges[begin];
    range.end = end;
    range.fields.emplace(field, value);
  } else {
    auto& whole = state.parameters[name].ranges[0];
    whole.end = -1;
    whole.fields.emplace(field, value);
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

/// Returns a field of a piece as the piece lies. `elementwise`: it is as the parameter.
at::Tensor placed(const OptimizerPiece& piece, const SavedParameter& saved, const std::string& name,
                  const at::Tensor& one, bool elementwise) {
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

/// False where their class is unknown. Sets the other's rate to the first's.
bool are_equal_but_rate(const OptimizerOptions& now, OptimizerOptions& before) {
  bool are_equal = false;
  each_kind([&]<class, class, class Options>(const char*) {
    const auto* const as = dynamic_cast<const Options*>(&now);
    auto* const other = dynamic_cast<Options*>(&before);
    if (as == nullptr || other == nullptr) return;
    other->set_lr(as->get_lr());
    are_equal = *as == *other;
  });
  return are_equal;
}

std::size_t hash_of(const void* address) {
  return std::hash<const void*>()(address);
}

}  // namespace

OptimizerState parts_of_state(Optimizer& optimizer, std::span<const OptimizerPiece> pieces) {
  OptimizerState parts;
  for (const OptimizerPiece& piece : pieces) {
    std::string prefix = piece.name + "/";
    if (!piece.is_whole()) {
      parts.tensors.insert(prefix + "layout",
                           at::stack({at::tensor(piece.whole.sizes(), at::kLong),
                                      at::tensor(piece.whole.strides(), at::kLong)}));
      prefix =
          c10::str(piece.name, '[', piece.begin, ':', piece.begin + piece.stepped.numel(), "]/");
    }
    const auto found = optimizer.state().find(key_of(piece.stepped));
    if (found == optimizer.state().end()) continue;
    const auto put_field = [&]<class T>(const std::string& name, T& value) {
      if constexpr (std::is_same_v<T, at::Tensor>) {
        if (value.defined()) parts.tensors.insert(prefix + name, value);
      } else if constexpr (std::is_same_v<T, std::deque<at::Tensor>>) {
        for (std::size_t i = 0; i < value.size(); ++i) {
          parts.tensors.insert(c10::str(prefix, name, '.', i), value[i]);
        }
      } else {
        parts.numbers.insert(prefix + name,
                             at::from_blob(&value, {}, c10::CppTypeToScalarType<T>::value));
      }
    };
    const bool known =
        with_class(*found->second, [&](auto& state, const char*) { each_field(state, put_field); });
    if (!known) {
      refuse_state("of parameter " + in_quotes(piece.name) +
                   " is of a class that is none of LibTorch's (Checkpoint::add_state() takes any)");
    }
  }
  parts.rest = OptionsCopies().of(optimizer);
  return parts;
}

NamedTensors OptionsCopies::of(Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  groups_.resize(groups.size());
  NamedTensors entries;
  if (!optimizer.state().empty()) {
    with_class(*optimizer.state().begin()->second,
               [&](auto&, const char* kind) { entries.insert("kind", text_tensor(kind)); });
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Group& group = groups_[i];
    const OptimizerOptions& now = groups[i].options();
    if (!group.options || !are_equal_but_rate(now, *group.options)) {
      const std::string bytes = options_bytes(now);
      std::string rate;
      put_text(rate, "lr");
      put(rate, std::uint8_t{0});
      put(rate, Kind::real);
      group = {now.clone(), text_tensor(bytes), bytes.find(rate)};
      if (group.rate != bytes.npos) group.rate += rate.size();
    } else if (group.rate != std::string::npos) {
      const double rate = now.get_lr();
      std::memcpy(static_cast<char*>(group.bytes.data_ptr()) + group.rate, &rate, sizeof rate);
    }
    entries.insert(c10::str("groups/", i), group.bytes);
  }
  return entries;
}

NamedTensors state_of(Optimizer& optimizer, std::span<const OptimizerPiece> pieces) {
  OptimizerState parts = parts_of_state(optimizer, pieces);
  parts.tensors.update(parts.numbers);
  parts.tensors.update(parts.rest);
  return std::move(parts.tensors);
}

std::size_t addresses_of_state(Optimizer& optimizer) {
  std::size_t addresses = 0;
  const auto add = [&]<class T>(const char*, T& value) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (value.defined()) addresses = c10::hash_combine(addresses, hash_of(value.data_ptr()));
    } else {
      addresses = c10::hash_combine(addresses, hash_of(&value));
    }
  };
  for (auto& [key, state] : optimizer.state()) {
    with_class(*state, [&](auto& of_class, const char*) { each_field(of_class, add); });
  }
  return addresses;
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
  auto& groups = optimizer.param_groups();
  if (state.groups.size() != groups.size()) {
    refuse_state("the checkpoint has ", state.groups.size(), " parameter groups, the optimizer ",
                 groups.size());
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto group = state.groups.find(c10::str("groups/", i));
    if (group == state.groups.end()) refuse_state("group ", i, " has no options");
    load_options(groups[i].options(), text_of(group->second));
  }
  optimizer.state().clear();
  for (const OptimizerPiece& piece : pieces) {
    const auto found = state.parameters.find(piece.name);
    if (found == state.parameters.end() || found->second.ranges.empty()) continue;
    const Fields& fields = found->second.ranges.begin()->second.fields;
    const bool elementwise = state.kind != "LBFGS";
    const auto set_field = [&]<class T>(const std::string& name, T& value) {
      if constexpr (std::is_same_v<T, std::deque<at::Tensor>>) {
        for (std::size_t i = 0;; ++i) {
          const auto one = fields.find(c10::str(name, '.', i));
          if (one == fields.end()) return;
          value.push_back(placed(piece, found->second, one->first, one->second, elementwise));
        }
      } else {
        const auto one = fields.find(name);
        if (one == fields.end()) return;
        if constexpr (std::is_same_v<T, at::Tensor>) {
          value = placed(piece, found->second, name, one->second, elementwise);
        } else {
          value = one->second.template item<T>();
        }
      }
    };
    auto loaded = new_state(state.kind);
    with_class(*loaded, [&](auto& of_class, const char*) { each_field(of_class, set_field); });
    optimizer.state()[key_of(piece.stepped)] = std::move(loaded);
  }
}

}  // namespace hora::internal
