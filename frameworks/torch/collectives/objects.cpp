#include "frameworks/torch/collectives/objects.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <hora/torch/collectives.h>
#include <hora/torch/module.h>
#include <hora/torch/objects.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <sstream>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "frameworks/torch/optimizer/parameters.h"
#include "frameworks/torch/peers.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

/// The numbers are part of the wire format: append, never reorder.
enum class Kind : std::uint8_t {
  none = 0,
  tensor = 1,
  undefined_tensor = 2,
  integer = 3,
  real = 4,
  boolean = 5,
  text = 6,
  tensors = 7,   ///< a list of tensors
  integers = 8,  ///< likewise
  reals = 9,
  booleans = 10,
  list = 11,  ///< of anything
  tuple = 12,
};

constexpr int kMaxDepth = 8;
constexpr std::size_t kMaxDimensions = 64;

/// Types whose elements are plain bytes. LibTorch's numbers are the same in all its versions.
bool is_plain(c10::ScalarType type) {
  return (type >= c10::ScalarType::Byte && type <= c10::ScalarType::Bool) ||
         type == c10::ScalarType::BFloat16;
}

void write_tensor(ByteWriter& writer, const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) return writer.put(Kind::undefined_tensor);
  if (tensor.layout() != c10::kStrided || !is_plain(tensor.scalar_type())) {
    refuse_tensor(name, std::string("a tensor of type ") + c10::toString(tensor.scalar_type()) +
                            " that is sparse or quantised; expected a dense one of numbers");
  }
  const at::Tensor plain =
      tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();  // NOLINT
  writer.put(Kind::tensor);
  writer.put(static_cast<std::int8_t>(plain.scalar_type()));
  writer.put(static_cast<std::uint64_t>(plain.dim()));
  for (const std::int64_t extent : plain.sizes()) writer.put(extent);
  writer.put_bytes(plain.data_ptr(), plain.nbytes());
}

at::Tensor read_tensor(BoundedReader& reader) {
  const auto type = static_cast<c10::ScalarType>(reader.take<std::int8_t>());
  if (!is_plain(type)) reader.refuse("a tensor of an unknown type");
  const std::size_t dimensions = reader.take_count(sizeof(std::int64_t));
  if (dimensions > kMaxDimensions) reader.refuse("a tensor of too many dimensions");
  std::vector<std::int64_t> shape;
  bool empty = false;
  Checked bytes = c10::elementSize(type);
  for (std::size_t d = 0; d < dimensions; ++d) {
    shape.push_back(reader.take<std::int64_t>());
    empty = empty || shape.back() == 0;
    // Rows must be countable also where there are none.
    if (shape.back() != 0) bytes = bytes * shape.back();
  }
  if (!bytes.at_most(kMaxBytes)) reader.refuse("a tensor's shape is none");
  const auto content = reader.take_bytes(empty ? 0 : bytes.value());
  at::Tensor tensor = at::empty(shape, type);
  if (!content.empty()) std::memcpy(tensor.data_ptr(), content.data(), content.size());
  return tensor;
}

c10::IValue read_nested(BoundedReader& reader, int depth);

template <class T, class Read>
c10::List<T> read_list(BoundedReader& reader, Read read) {
  c10::List<T> list;
  for (std::size_t left = reader.take_count(1); left > 0; --left) list.push_back(read());
  return list;
}

std::vector<c10::IValue> read_values(BoundedReader& reader, int depth) {
  std::vector<c10::IValue> values;
  for (std::size_t left = reader.take_count(1); left > 0; --left) {
    values.push_back(read_nested(reader, depth + 1));
  }
  return values;
}

c10::IValue read_nested(BoundedReader& reader, int depth) {
  if (depth > kMaxDepth) reader.refuse("values are nested too deep");
  const auto element = [&] { return read_nested(reader, depth + 1); };
  const auto tensor = [&] {
    const c10::IValue value = element();
    if (!value.isTensor()) reader.refuse("a list of tensors with something else");
    return value.toTensor();
  };
  switch (reader.take<Kind>()) {
    case Kind::none:
      return {};
    case Kind::tensor:
      return read_tensor(reader);
    case Kind::undefined_tensor:
      return at::Tensor();
    case Kind::integer:
      return reader.take<std::int64_t>();
    case Kind::real:
      return reader.take<double>();
    case Kind::boolean:
      return reader.take<std::uint8_t>() != 0;
    case Kind::text:
      return reader.take_text();
    case Kind::tensors:
      return read_list<at::Tensor>(reader, tensor);
    case Kind::integers:
      return read_list<std::int64_t>(reader, [&] { return reader.take<std::int64_t>(); });
    case Kind::reals:
      return read_list<double>(reader, [&] { return reader.take<double>(); });
    case Kind::booleans:
      return read_list<bool>(reader, [&] { return reader.take<std::uint8_t>() != 0; });
    case Kind::list: {
      c10::impl::GenericList list(c10::AnyType::get());
      for (c10::IValue& value : read_values(reader, depth)) list.push_back(std::move(value));
      return list;
    }
    case Kind::tuple:
      return c10::ivalue::Tuple::create(read_values(reader, depth));
  }
  reader.refuse("a value of an unknown kind");
}

template <class List, class Write>
void write_list(ByteWriter& writer, Kind kind, const List& list, Write write) {
  writer.put(kind);
  writer.put(static_cast<std::uint64_t>(list.size()));
  for (const auto& element : list) write(element);
}

}  // namespace

void write_value(ByteWriter& writer, const c10::IValue& value, const std::string& name) {
  const auto number = [&](auto element) { writer.put(element); };
  const auto any = [&](const c10::IValue& element) { write_value(writer, element, name); };
  if (value.isNone()) {
    writer.put(Kind::none);
  } else if (value.isTensor()) {
    write_tensor(writer, value.toTensor(), name);
  } else if (value.isInt()) {
    writer.put(Kind::integer);
    writer.put(value.toInt());
  } else if (value.isDouble()) {
    writer.put(Kind::real);
    writer.put(value.toDouble());
  } else if (value.isBool()) {
    writer.put(Kind::boolean);
    writer.put(static_cast<std::uint8_t>(value.toBool()));
  } else if (value.isString()) {
    writer.put(Kind::text);
    writer.put_text(value.toStringRef());
  } else if (value.isTensorList()) {
    write_list(writer, Kind::tensors, value.toTensorVector(), any);
  } else if (value.isIntList()) {
    write_list(writer, Kind::integers, value.toIntVector(), number);
  } else if (value.isDoubleList()) {
    write_list(writer, Kind::reals, value.toDoubleVector(), number);
  } else if (value.isBoolList()) {
    write_list(writer, Kind::booleans, value.toBoolList().vec(),
               [&](bool element) { writer.put(static_cast<std::uint8_t>(element)); });
  } else if (value.isList()) {
    write_list(writer, Kind::list, value.toListRef(), any);
  } else if (value.isTuple()) {
    const auto tuple = value.toTuple();
    write_list(writer, Kind::tuple, tuple->elements(), any);
  } else {
    refuse_tensor(name, "a " + value.tagKind() +
                            "; expected tensors, numbers, texts, or lists or tuples of them");
  }
}

c10::IValue read_value(BoundedReader& reader) {
  return read_nested(reader, 0);
}

namespace {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// A key's length, a kind and a value's kind.
constexpr std::size_t kLeastEntryBytes = 10;

enum class Entry : std::uint8_t { value = 0, archive = 1 };

/// The only archives that are ever read: those that this process has just written.
InputArchive reopened(OutputArchive& archive, const torch::Device& device) {
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string text = std::move(stream).str();
  InputArchive result;
  result.load_from(text.data(), text.size(), device);
  return result;
}

void write_archive(ByteWriter& writer, InputArchive& archive, const std::string& name) {
  const std::vector<std::string> keys = archive.keys();
  writer.put(static_cast<std::uint64_t>(keys.size()));
  for (const std::string& key : keys) {
    writer.put_text(key);
    InputArchive nested;
    if (archive.try_read(key, nested)) {
      writer.put(Entry::archive);
      write_archive(writer, nested, name);
      continue;
    }
    c10::IValue value;
    archive.read(key, value);
    writer.put(Entry::value);
    write_value(writer, value, name);
  }
}

/// LibTorch turns keys into quoted text of TorchScript, which it then parses: a key may not end it.
std::string take_key(BoundedReader& reader) {
  std::string key = reader.take_text();
  const bool is_plain = std::ranges::all_of(
      key, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (key.empty() || !is_plain)
    reader.refuse("the key of an entry, " + in_quotes(key) + ", is none");
  return key;
}

void read_archive(BoundedReader& reader, OutputArchive& archive, int depth) {
  if (depth > kMaxDepth) reader.refuse("archives are nested too deep");
  for (std::size_t left = reader.take_count(kLeastEntryBytes); left > 0; --left) {
    const std::string key = take_key(reader);
    switch (reader.take<Entry>()) {
      case Entry::value:
        archive.write(key, read_value(reader));
        continue;
      case Entry::archive: {
        OutputArchive nested(archive.compilation_unit());
        read_archive(reader, nested, depth + 1);
        archive.write(key, nested);
        continue;
      }
    }
    reader.refuse("an entry of an unknown kind");
  }
}

}  // namespace

std::string archive_bytes(OutputArchive& archive, const std::string& name) {
  InputArchive written = reopened(archive, torch::kCPU);
  ByteWriter writer;
  write_archive(writer, written, name);
  return std::move(writer).take();
}

InputArchive archive_of(std::span<const std::byte> bytes, const BytesOrigin& origin,
                        const torch::Device& device) {
  BoundedReader reader(bytes, origin);
  try {
    OutputArchive archive;
    read_archive(reader, archive, 0);
    reader.expect_end();
    return reopened(archive, device);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    reader.refuse(error.what_without_backtrace());  // such as a duplicate key
  } catch (const std::exception& error) {
    reader.refuse(error.what());  // of LibTorch's parser
  }
}

}  // namespace hora::internal

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
      lines.push_back(
          c10::str(parameter.scalar_type(), ' ', parameter.sizes(), " in group ", group));
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

namespace {

// As bytes, for types that hora cannot reduce but can copy, such as complex numbers.
torch::Tensor as_broadcastable(const torch::Tensor& tensor) {
  if (to_data_type(tensor.scalar_type())) return tensor;
  return tensor.contiguous().flatten().view(torch::kByte);
}

using NamedTensors = torch::OrderedDict<std::string, torch::Tensor>;

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

void broadcast_parameters(const Context& context, torch::nn::Module& module, int root,
                          ProcessSet process_set) {
  broadcast_all(context, {module.named_parameters(), module.named_buffers()}, root, process_set);
}

void broadcast_buffers(const Context& context, torch::nn::Module& module, int root,
                       ProcessSet process_set) {
  broadcast_all(context, {module.named_buffers()}, root, process_set);
}

}  // namespace hora
