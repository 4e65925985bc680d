#include <c10/util/Type.h>
#include <hora/process_set.h>
#include <hora/torch/objects.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "frameworks/torch/collectives/value_bytes.h"
#include "frameworks/torch/optimizer/parameters.h"
#include "frameworks/torch/peers.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

using Tensors = std::vector<torch::Tensor>;

std::string to_bytes(const Tensors& tensors, const std::string& name) {
  ByteWriter writer;
  writer.put(std::uint64_t{tensors.size()});
  for (const torch::Tensor& tensor : tensors) write_value(writer, tensor, name);
  return std::move(writer).take();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Tensors to_tensors(const std::string& text, int rank) {
  BoundedReader reader(bytes_of(text), {"an object of tensors", rank, ErrorCode::mismatch});
  Tensors tensors;
  for (std::size_t left = reader.take_count(1); left > 0; --left) {
    const c10::IValue value = read_value(reader);
    if (!value.isTensor()) reader.refuse("it holds something that is no tensor");
    tensors.push_back(value.toTensor());
  }
  reader.expect_end();
  return tensors;
}

constexpr const char* kName = "hora.optimizer_state";

std::string options_key(std::size_t group) {
  return "options_" + std::to_string(group);
}

/// LBFGS keeps room for factors that each step computes anew, undefined while its history is short,
/// and LibTorch does not save undefined tensors in a list.
void fill_undefined(torch::optim::Optimizer& optimizer) {
  for (auto& entry : optimizer.state()) {
    auto* const state = dynamic_cast<torch::optim::LBFGSParamState*>(entry.second.get());
    if (!state || !state->al()) continue;
    for (torch::Tensor& factor : *state->al()) {
      if (!factor.defined()) factor = torch::zeros({});
    }
  }
}

std::string saved(torch::optim::Optimizer& optimizer) {
  fill_undefined(optimizer);
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive state(archive.compilation_unit());
  optimizer.save(state);
  archive.write("optimizer", state);
  // Separately: not every version of LibTorch sets them in load().
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::OutputArchive options(archive.compilation_unit());
    optimizer.param_groups()[i].options().serialize(options);
    archive.write(options_key(i), options);
  }
  return archive_bytes(archive, kName);
}

/// With its state on `device`.
void load(torch::optim::Optimizer& optimizer, const std::string& text, int root,
          const torch::Device& device) {
  auto archive = archive_of(bytes_of(text), {"the state of an optimizer", root}, device);
  torch::serialize::InputArchive state;
  archive.read("optimizer", state);
  optimizer.state().clear();
  optimizer.load(state);
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::InputArchive options;
    archive.read(options_key(i), options);
    optimizer.param_groups()[i].options().serialize(options);
  }
}

/// Lines that must be the same on all ranks.
std::vector<std::string> described(const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> lines{"an optimizer of class " +
                                 c10::demangle(typeid(optimizer).name())};
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    lines.push_back("group " + std::to_string(group));
    for (const torch::Tensor& parameter : optimizer.param_groups()[group].params()) {
      std::ostringstream line;
      line << torch::toString(parameter.scalar_type()) << ' ' << parameter.sizes() << " in group "
           << group;
      lines.push_back(line.str());
    }
  }
  return lines;
}

/// Those with a parameter; at least one.
std::vector<torch::Device> devices_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Device> devices;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (std::find(devices.begin(), devices.end(), parameter.device()) != devices.end()) continue;
      devices.push_back(parameter.device());
    }
  }
  if (devices.empty()) devices.emplace_back(torch::kCPU);
  return devices;
}

/// With each parameter's state on its device. LibTorch restores a state, of whatever class, on one
/// device as a whole.
void load_where_parameters_are(torch::optim::Optimizer& optimizer, const std::string& text,
                               int root) {
  OptimizerStates states;
  for (const torch::Device& device : devices_of(optimizer)) {
    load(optimizer, text, root, device);
    for (const auto& group : optimizer.param_groups()) {
      for (const torch::Tensor& parameter : group.params()) {
        const auto state = optimizer.state().find(key_of(parameter));
        if (state == optimizer.state().end() || parameter.device() != device) continue;
        states[state->first] = std::move(state->second);
      }
    }
  }
  optimizer.state() = std::move(states);
}

}  // namespace

Tensors broadcast_object(const Context& context, const Tensors& tensors,
                         const BroadcastObjectOptions& options) {
  const bool sends = context.rank() == options.root;
  const std::string own = sends ? to_bytes(tensors, options.name) : std::string();
  return to_tensors(broadcast_object(context, std::string_view(own), options), options.root);
}

std::vector<Tensors> allgather_object(const Context& context, const Tensors& tensors,
                                      const AllgatherOptions& options) {
  const std::string own = to_bytes(tensors, options.name);
  const auto texts = allgather_object(context, std::string_view(own), options);
  const std::vector<int> ranks = ranks_of(context, options.process_set);
  std::vector<Tensors> objects;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    objects.push_back(to_tensors(texts[i], ranks[i]));
  }
  return objects;
}

void broadcast_optimizer_state(const Context& context, torch::optim::Optimizer& optimizer, int root,
                               ProcessSet process_set) {
  check_agreement(peers_of(context, process_set),
                  {"Optimizers", "Every rank must build the same one"}, kName,
                  described(optimizer));
  const bool sends = context.rank() == root;
  const std::string text =
      broadcast_object(context, std::string_view(sends ? saved(optimizer) : std::string()),
                       {.name = kName, .root = root, .process_set = process_set});
  if (!sends) load_where_parameters_are(optimizer, text, root);
}

}  // namespace hora
