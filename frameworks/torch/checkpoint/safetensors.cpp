#include "frameworks/torch/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <hora/torch/safetensors.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "core/base/checked.h"
#include "frameworks/torch/checkpoint/store.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

struct TypeName {
  DataType type;
  std::string_view name;
};
/// In the order of the format's library, which writes the last ones first.
constexpr std::array kTypes{
    TypeName{DataType::boolean, "BOOL"},  TypeName{DataType::uint8, "U8"},
    TypeName{DataType::int8, "I8"},       TypeName{DataType::int16, "I16"},
    TypeName{DataType::uint16, "U16"},    TypeName{DataType::float16, "F16"},
    TypeName{DataType::bfloat16, "BF16"}, TypeName{DataType::int32, "I32"},
    TypeName{DataType::uint32, "U32"},    TypeName{DataType::float32, "F32"},
    TypeName{DataType::float64, "F64"},   TypeName{DataType::int64, "I64"},
    TypeName{DataType::uint64, "U64"},
};
static_assert(kTypes.size() == static_cast<std::size_t>(last_of<DataType>) + 1);

std::size_t place_of(DataType type) {
  return static_cast<std::size_t>(std::ranges::find(kTypes, type, &TypeName::type) -
                                  kTypes.begin());
}

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMostDimensions = 64;
constexpr std::string_view kMetadata = "__metadata__";

/// Nothing where the shape is none, or its bytes cannot be counted.
std::optional<std::uint64_t> bytes_of(DataType type, const std::vector<std::int64_t>& shape) {
  if (shape.size() > kMostDimensions) return std::nullopt;
  Checked bytes = size_of(type);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    empty = empty || extent == 0;
    // Rows must be countable also where there are none.
    if (extent != 0) bytes = bytes * extent;
  }
  if (!bytes.at_most(kMaxBytes)) return std::nullopt;
  return empty ? 0 : bytes.value();
}

/// A header that is longer is refused, as the format's own library does.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// The deepest of the header's objects and lists is a tensor's shape.
constexpr int kHeaderDepth = 2;

using Json = nlohmann::json;
using Problem = std::invalid_argument;

/// Throws Problem for keys that are there twice, which a tree of values would hide, and for depth.
Json parsed_header(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  return Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth > kHeaderDepth) throw Problem("an object or a list where none is expected");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      throw Problem(in_quotes(value.get<std::string>()) + " is there twice");
    }
    return true;
  });
}

std::vector<std::uint64_t> numbers_in(const Json& tensor, const char* key) {
  const Json& list = tensor.at(key);
  if (!list.is_array() || !std::ranges::all_of(list, &Json::is_number_unsigned)) {
    throw Problem(std::string("its ") + key + " is no list of numbers from 0 on");
  }
  return list.get<std::vector<std::uint64_t>>();
}

/// Offsets from the header's end. Throws Problem or an exception of Json's.
TensorEntry entry_of(const std::string& name, const Json& tensor) {
  if (!tensor.is_object() || tensor.size() != 3) {
    throw Problem("expected dtype, shape and data_offsets, and nothing else");
  }
  TensorEntry entry;
  entry.name = name;
  const auto type = tensor.at("dtype").get<std::string>();
  const auto found = std::ranges::find(kTypes, type, &TypeName::name);
  if (found == kTypes.end()) throw Problem("its dtype " + in_quotes(type) + " is unknown");
  entry.type = found->type;
  for (const std::uint64_t extent : numbers_in(tensor, "shape")) {
    if (!std::in_range<std::int64_t>(extent)) throw Problem("its shape is none");
    entry.shape.push_back(static_cast<std::int64_t>(extent));
  }
  const std::vector<std::uint64_t> offsets = numbers_in(tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw Problem("its data_offsets are not a begin and an end");
  }
  entry.offset = offsets[0];
  entry.bytes = offsets[1] - offsets[0];
  return entry;
}

/// Offsets from the header's end.
tl::expected<Safetensors, std::string> read_header(std::string_view text) {
  Safetensors result;
  std::string name;
  try {
    const Json header = parsed_header(text);
    for (const auto& item : header.items()) {
      name = item.key();
      if (name == kMetadata) {
        item.value().get_to(result.metadata);
      } else {
        result.tensors.push_back(entry_of(name, item.value()));
      }
    }
  } catch (const Json::parse_error& error) {
    return tl::unexpected(std::string("the header is no JSON: ") + error.what());
  } catch (const std::exception& error) {
    return tl::unexpected((name.empty() ? "the header" : "tensor " + in_quotes(name)) + ": " +
                          error.what());
  }
  return result;
}

/// Each byte of the data belongs to one tensor. Empty where that is so.
std::string range_problem(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::ranges::stable_sort(tensors, {}, [](const TensorEntry& tensor) {
    return std::tuple(tensor.offset, tensor.bytes);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    const std::string name = "tensor " + in_quotes(tensor.name);
    const auto expected = bytes_of(tensor.type, tensor.shape);
    if (!expected) return name + ": its shape is none, or too large";
    if (*expected != tensor.bytes) {
      return name + ": its data_offsets span " + std::to_string(tensor.bytes) +
             " bytes, its shape and dtype " + std::to_string(*expected);
    }
    if (tensor.offset != end) {
      return name + ": it begins at byte " + std::to_string(tensor.offset) +
             " of the data, the one before ends at " + std::to_string(end);
    }
    if (tensor.bytes > data_bytes - end) {
      return name + ": it ends at byte " + std::to_string(end + tensor.bytes) +
             " of the data, which has " + std::to_string(data_bytes);
    }
    end += tensor.bytes;
  }
  if (end == data_bytes) return "";
  return "the last tensor ends at byte " + std::to_string(end) + " of the data, which has " +
         std::to_string(data_bytes);
}

std::string json_of(const TensorEntry& tensor) {
  const std::uint64_t offsets[] = {tensor.offset, tensor.offset + tensor.bytes};
  return Json(tensor.name).dump() + R"(:{"dtype":")" +
         std::string(kTypes[place_of(tensor.type)].name) + R"(","shape":)" +
         Json(tensor.shape).dump() + R"(,"data_offsets":)" + Json(offsets).dump() + "}";
}

}  // namespace

tl::expected<Safetensors, std::string> parse_safetensors(std::span<const std::byte> file) {
  std::uint64_t header_bytes = 0;
  if (file.size() < kLengthBytes) {
    return tl::unexpected("it has " + std::to_string(file.size()) +
                          " bytes, fewer than the 8 of a header's length");
  }
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  const std::uint64_t rest = file.size() - kLengthBytes;
  if (header_bytes > kMaxHeaderBytes || header_bytes > rest) {
    return tl::unexpected(
        std::string("it is no safetensors file (torch.save() writes none), or cut off"));
  }
  const auto* const text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (header_bytes == 0 || text[0] != '{') {
    return tl::unexpected(
        std::string("it is no safetensors file: its header does not begin with '{'"));
  }
  auto result = read_header({text, header_bytes});
  if (!result) return result;
  if (std::string problem = range_problem(result->tensors, rest - header_bytes); !problem.empty()) {
    return tl::unexpected(std::move(problem));
  }
  for (TensorEntry& tensor : result->tensors) tensor.offset += kLengthBytes + header_bytes;
  return result;
}

tl::expected<SafetensorsLayout, std::string> lay_out_safetensors(std::vector<TensorEntry> tensors,
                                                                 const Metadata& metadata) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    const std::size_t place_of_a = place_of(a.type);
    const std::size_t place_of_b = place_of(b.type);
    return place_of_a != place_of_b ? place_of_a > place_of_b : a.name < b.name;
  });
  std::set<std::string_view> names{kMetadata};
  std::uint64_t end = 0;
  for (TensorEntry& tensor : tensors) {
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    const std::string name = "tensor " + in_quotes(tensor.name);
    if (!names.insert(tensor.name).second) return tl::unexpected(name + ": its name is taken");
    if (!bytes || *bytes > kMaxBytes - end) return tl::unexpected(name + ": it is too large");
    tensor.offset = end;
    tensor.bytes = *bytes;
    end += *bytes;
  }
  SafetensorsLayout layout;
  try {
    std::string header;
    if (!metadata.empty()) header += Json(kMetadata).dump() + ":" + Json(metadata).dump();
    for (const TensorEntry& tensor : tensors) {
      header += (header.empty() ? "" : ",") + json_of(tensor);
    }
    header = "{" + header + "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    const std::uint64_t length = header.size();
    if (length > kMaxHeaderBytes) return tl::unexpected(std::string("its header is over 100 MB"));
    layout.header.resize(kLengthBytes);
    std::memcpy(layout.header.data(), &length, kLengthBytes);
    layout.header += header;
  } catch (const Json::exception& error) {
    return tl::unexpected(std::string("a name is no UTF-8: ") + error.what());
  }
  for (TensorEntry& tensor : tensors) tensor.offset += layout.header.size();
  layout.bytes = layout.header.size() + end;
  layout.tensors = std::move(tensors);
  return layout;
}

namespace {

std::vector<TensorEntry> entries_of(const NamedTensors& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& item : tensors) {
    check_dense(item.key(), item.value());
    const auto type = to_data_type(item.value().scalar_type());
    if (!type) {
      refuse_tensor(item.key(), std::string("a tensor of type ") +
                                    c10::toString(item.value().scalar_type()) +
                                    " cannot be written; expected numbers or booleans");
    }
    entries.push_back({item.key(), *type, item.value().sizes().vec()});
  }
  return entries;
}

SafetensorsLayout layout_of_file(const NamedTensors& tensors, const Metadata& metadata) {
  auto layout = lay_out_safetensors(entries_of(tensors), metadata);
  if (layout) return std::move(*layout);
  throw Error(ErrorCode::invalid_argument,
              "these tensors make no safetensors file: " + layout.error());
}

}  // namespace

void check_can_fill(const NamedTensors& tensors) {
  layout_of_file(tensors, {});
}

void fill_image(Bytes& image, const NamedTensors& tensors, const Metadata& metadata) {
  const SafetensorsLayout layout = layout_of_file(tensors, metadata);
  image.resize(layout.bytes);
  std::memcpy(image.data(), layout.header.data(), layout.header.size());
  const at::NoGradGuard no_grad;
  for (const TensorEntry& entry : layout.tensors) {
    if (entry.bytes == 0) continue;
    const at::Tensor& tensor = tensors[entry.name];
    at::from_blob(image.data() + entry.offset, entry.shape, at::TensorOptions(tensor.scalar_type()))
        .copy_(tensor);
  }
}

tl::expected<ImageContents, std::string> contents_of(Bytes bytes) {
  const auto file = std::make_shared<Bytes>(std::move(bytes));
  auto parsed = parse_safetensors(*file);
  if (!parsed) return tl::unexpected(parsed.error());
  ImageContents contents;
  contents.metadata = std::move(parsed->metadata);
  for (const TensorEntry& entry : parsed->tensors) {
    const c10::ScalarType type = to_scalar_type(entry.type);
    if (type == c10::ScalarType::Undefined) {
      return tl::unexpected("tensor " + in_quotes(entry.name) +
                            ": this version of LibTorch has no type " +
                            std::string(name_of(entry.type)));
    }
    contents.tensors.insert(entry.name, entry.bytes == 0
                                            ? at::empty(entry.shape, at::TensorOptions(type))
                                            : at::from_blob(
                                                  file->data() + entry.offset, entry.shape,
                                                  [file](void*) {}, at::TensorOptions(type)));
  }
  return contents;
}

at::Tensor text_tensor(std::string_view text) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(tensor.data_ptr(), text.data(), text.size());
  return tensor;
}

std::string text_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace hora::internal

namespace hora {
using namespace internal;
namespace {

[[noreturn]] void refuse_weights(const std::string& name, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "load_weights(): " + in_quotes(name) + " " + what, -1,
              name);
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors) {
  Bytes image;
  fill_image(image, tensors);
  replace_durably(path, image);
}

NamedTensors load_safetensors(const std::string& path) {
  auto bytes = read_file(path, std::numeric_limits<std::int64_t>::max());
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, in_quotes(path) + ": " + what);
  };
  if (!bytes) refuse(bytes.error());
  auto contents = contents_of(std::move(*bytes));
  if (!contents) refuse(contents.error());
  NamedTensors own;
  for (const auto& item : contents->tensors) own.insert(item.key(), item.value().clone());
  return own;
}

NamedTensors weights_of(const torch::nn::Module& module) {
  NamedTensors weights = module.named_parameters();
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) weights.insert(item.key(), item.value());
  }
  return weights;
}

void load_weights(torch::nn::Module& module, const NamedTensors& weights) {
  const NamedTensors own = weights_of(module);
  for (const auto& item : own) {
    const torch::Tensor* const given = weights.find(item.key());
    if (given == nullptr) refuse_weights(item.key(), "is in the module, but not in the weights");
    if (given->sizes() != item.value().sizes()) {
      refuse_weights(item.key(), c10::str("has the shape ", given->sizes(), " in the weights; ",
                                          "expected the module's, ", item.value().sizes()));
    }
  }
  for (const auto& item : weights) {
    if (!own.contains(item.key())) {
      refuse_weights(item.key(), "is in the weights, but not in the module");
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    torch::Tensor into = item.value();
    into.copy_(weights[item.key()]);
  }
}

}  // namespace hora
