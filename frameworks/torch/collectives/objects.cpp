// Tensors as objects, optimizers' state, modules; and lines that ranks must share (peers.h).
#include <hora/objects_json.h>
#include <hora/torch/collectives.h>
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <typeinfo>
#include <unordered_set>

#include "core/base/checked.h"
#include "frameworks/torch/checkpoint/named_tensors.h"
#include "frameworks/torch/peers.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {

Peers peers_of(const Context& context, ProcessSet set) {
  if (set == kWorld) return {context, kWorld, context.size(), context.rank(), 0};
  const auto members = ranks_of(context, set);
  const auto position = std::find(members.begin(), members.end(), context.rank());
  if (position == members.end()) {
    throw Error(
        ErrorCode::invalid_argument,
        "process set " + to_string(set) + " does not hold this rank: only its members may use it",
        context.rank());
  }
  return {context, set, static_cast<int>(members.size()),
          static_cast<int>(position - members.begin()), members.front()};
}

void check_agreement(const Peers& peers, const Agreement& agreement, const std::string& name,
                     const std::vector<std::string>& lines) {
  if (peers.size == 1) return;
  const auto share = [&](const nlohmann::json& value, const std::string& as, int root) {
    return broadcast_object(peers.context, value,
                            {.name = name + as, .root = root, .process_set = peers.set});
  };
  const auto expected = share(lines, "", peers.first).get<std::vector<std::string>>();

  // Each world rank's first differing line, counted from 1; 0: none.
  std::vector<std::int64_t> differing(static_cast<std::size_t>(peers.context.size()), 0);
  const auto [own, other] = std::ranges::mismatch(lines, expected);
  if (own != lines.end() || other != expected.end()) {
    differing[static_cast<std::size_t>(peers.context.rank())] = own - lines.begin() + 1;
  }
  allreduce(peers.context, view(differing),
            {.name = name + ".verdict", .op = ReduceOp::sum, .process_set = peers.set});
  const auto first = std::ranges::find_if(differing, [](auto v) { return v != 0; });
  if (first == differing.end()) return;

  const auto rank = static_cast<int>(first - differing.begin());
  const auto index = static_cast<std::size_t>(*first - 1);
  const auto line_of = [index](const std::vector<std::string>& of) {
    return index < of.size() ? of[index] : "none";
  };
  const auto theirs = share(line_of(lines), ".difference", rank).get<std::string>();
  throw Error(ErrorCode::mismatch,
              c10::str(agreement.what, " differ between ranks: rank ", peers.first, " has ",
                       line_of(expected), ", rank ", rank, " has ", theirs, ". ", agreement.advice),
              rank, name);
}

}  // namespace hora::internal

namespace hora {
using namespace internal;
namespace {

/// A safetensors image of "0", "1", ...; of complex numbers "0 complex", pairs of real ones; of
/// undefined tensors "0 undefined".
Bytes image_of(const Tensors& tensors, const std::string& name) {
  NamedTensors named;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string key = std::to_string(i);
    if (!tensors[i].defined()) {
      named.insert(key + " undefined", torch::empty({0}));
      continue;
    }
    check_dense(name, tensors[i]);
    const torch::Tensor plain = tensors[i].detach().resolve_conj().resolve_neg();
    if (plain.is_complex()) {
      named.insert(key + " complex", torch::view_as_real(plain));
    } else {
      named.insert(key, plain);
    }
  }
  Bytes image;
  fill_image(image, named);
  return image;
}

Tensors tensors_in(Bytes image, int rank) {
  const auto refuse = [rank](const std::string& why) {
    throw Error(ErrorCode::mismatch,
                c10::str("tensors of rank ", rank, " cannot be read: ", why,
                         ". Do all ranks call the same collectives, with the same build of hora?"),
                rank);
  };
  const auto contents = contents_of(std::move(image));
  if (!contents) refuse(contents.error());
  Tensors tensors(contents->tensors.size());
  for (const auto& item : contents->tensors) {
    const std::string& key = item.key();
    std::size_t index = tensors.size();
    const auto number = std::from_chars(key.data(), key.data() + key.size(), index);
    const std::string_view kind(number.ptr, key.data() + key.size());
    if (index >= tensors.size()) refuse("it has an entry " + in_quotes(key));
    if (kind == " undefined") continue;
    const torch::Tensor own = item.value().clone();
    tensors[index] = kind == " complex" ? torch::view_as_complex(own) : own;
  }
  return tensors;
}

constexpr const char* kName = "hora.optimizer_state";

/// Lines that must be the same on all ranks.
std::vector<std::string> described(const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> lines{"an optimizer of class " +
                                 c10::demangle(typeid(optimizer).name())};
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    lines.push_back("group " + std::to_string(group));
    for (const torch::Tensor& parameter : optimizer.param_groups()[group].params()) {
      lines.push_back(
          c10::str(parameter.scalar_type(), ' ', parameter.sizes(), " in group ", group));
    }
  }
  return lines;
}

/// Parameters by their places in the groups.
std::vector<OptimizerPiece> pieces_of(const torch::optim::Optimizer& optimizer) {
  std::vector<OptimizerPiece> pieces;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      pieces.push_back({std::to_string(pieces.size()), parameter, parameter});
    }
  }
  return pieces;
}

/// As bytes, for types that hora cannot reduce but can copy, such as complex numbers.
torch::Tensor as_broadcastable(const torch::Tensor& tensor) {
  if (to_data_type(tensor.scalar_type())) return tensor;
  return tensor.contiguous().flatten().view(torch::kByte);
}

void broadcast_all(const Context& context, const std::vector<NamedTensors>& lists, int root,
                   ProcessSet set) {
  const torch::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> sources;
  std::vector<TensorHandle> handles;  // after sources: handles are destroyed first
  for (const NamedTensors& tensors : lists) {
    for (const auto& item : tensors) {
      const torch::Tensor& tensor = item.value();
      // A weight tied under two names travels once.
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      torch::Tensor travelling = as_broadcastable(tensor.detach());
      handles.push_back(broadcast_async_(
          context, travelling,
          {.name = "hora.broadcast." + item.key(), .root = root, .process_set = set}));
      sources.emplace_back(tensor, std::move(travelling));
    }
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    handles[i].wait();
    const auto& [target, travelling] = sources[i];
    if (travelling.data_ptr() == target.data_ptr()) continue;
    target.detach().copy_(travelling.view(target.scalar_type()).view(target.sizes()));
  }
}

}  // namespace

Tensors broadcast_object(const Context& context, const Tensors& tensors,
                         const BroadcastObjectOptions& options) {
  const Bytes own = context.rank() == options.root ? image_of(tensors, options.name) : Bytes();
  return tensors_in(broadcast_object(context, std::span(own), options), options.root);
}

std::vector<Tensors> allgather_object(const Context& context, const Tensors& tensors,
                                      const AllgatherOptions& options) {
  const Bytes own = image_of(tensors, options.name);
  auto images = allgather_object(context, std::span(own), options);
  const std::vector<int> ranks = ranks_of(context, options.process_set);
  std::vector<Tensors> objects;
  for (std::size_t i = 0; i < images.size(); ++i) {
    objects.push_back(tensors_in(std::move(images[i]), ranks[i]));
  }
  return objects;
}

void broadcast_optimizer_state(const Context& context, torch::optim::Optimizer& optimizer, int root,
                               ProcessSet process_set) {
  constexpr const char* kProblem = "problem";
  check_agreement(peers_of(context, process_set),
                  {"Optimizers", "Every rank must build the same one"}, kName,
                  described(optimizer));
  const bool sends = context.rank() == root;
  const auto pieces = pieces_of(optimizer);
  Bytes image;
  if (sends) {
    try {
      fill_image(image, state_of(optimizer, pieces));
    } catch (const std::exception& error) {
      fill_image(image, NamedTensors(), {{kProblem, error.what()}});  // for all ranks
    }
  }
  image = broadcast_object(context, std::span<const std::byte>(image),
                           {.name = kName, .root = root, .process_set = process_set});
  auto contents = contents_of(std::move(image));
  const std::string problem = contents ? contents->metadata[kProblem] : contents.error();
  if (!problem.empty()) {
    throw Error(ErrorCode::invalid_argument,
                c10::str("broadcast_optimizer_state() from rank ", root, ": ", problem), root);
  }
  if (!sends) load_state(optimizer, pieces, {&contents->tensors, 1});
}

void broadcast_parameters(const Context& context, torch::nn::Module& module, int root,
                          ProcessSet process_set) {
  broadcast_all(context, {module.named_parameters(), module.named_buffers()}, root, process_set);
}

void broadcast_buffers(const Context& context, torch::nn::Module& module, int root,
                       ProcessSet process_set) {
  broadcast_all(context, {module.named_buffers()}, root, process_set);
}

}  // namespace hora
