#include <hora/error.h>
#include <hora/printable.h>
#include <hora/torch/checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

#include "core/base/checked.h"
#include "frameworks/torch/checkpoint/named_tensors.h"
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

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMostDimensions = 64;
constexpr const char* kMetadata = "__metadata__";
/// A header that is longer is refused, as the format's own library does.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// The deepest of the header's objects and lists is a tensor's shape.
constexpr int kHeaderDepth = 2;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::size_t type = 0;  ///< in kTypes
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  ///< from the header's end
  std::uint64_t bytes = 0;
};

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
    throw Problem(c10::str("its ", key, " is no list of numbers from 0 on"));
  }
  return list.get<std::vector<std::uint64_t>>();
}

/// Throws Problem or an exception of Json's.
TensorEntry entry_of(const std::string& name, const Json& tensor) {
  if (!tensor.is_object() || tensor.size() != 3) {
    throw Problem("expected dtype, shape and data_offsets, and nothing else");
  }
  const auto type = tensor.at("dtype").get<std::string>();
  const auto found = std::ranges::find(kTypes, type, &TypeName::name);
  if (found == kTypes.end()) throw Problem("its dtype " + in_quotes(type) + " is unknown");
  TensorEntry entry{name, static_cast<std::size_t>(found - kTypes.begin()), {}};
  Checked bytes = size_of(found->type);
  bool empty = false;
  for (const std::uint64_t extent : numbers_in(tensor, "shape")) {
    entry.shape.push_back(static_cast<std::int64_t>(extent));
    empty = empty || extent == 0;
    // Rows must be countable also where there are none.
    if (extent != 0) bytes = bytes * entry.shape.back();
  }
  if (entry.shape.size() > kMostDimensions || !bytes.at_most(kMaxBytes)) {
    throw Problem("its shape is none, or too large");
  }
  entry.bytes = empty ? 0 : bytes.value();
  const auto offsets = numbers_in(tensor, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw Problem("its data_offsets are not a begin and an end");
  }
  if (offsets[1] - offsets[0] != entry.bytes) {
    throw Problem(c10::str("its data_offsets span ", offsets[1] - offsets[0],
                           " bytes, its shape and dtype ", entry.bytes));
  }
  entry.offset = offsets[0];
  return entry;
}

/// Throws Problem unless each byte of the data belongs to one tensor.
void check_ranges(std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::ranges::stable_sort(tensors, {}, [](const TensorEntry& tensor) {
    return std::tuple(tensor.offset, tensor.bytes);
  });
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.offset != end) {
      throw Problem(c10::str("tensor ", in_quotes(tensor.name), ": it begins at byte ",
                             tensor.offset, " of the data, the one before ends at ", end));
    }
    if (tensor.bytes > data_bytes - end) {
      throw Problem(c10::str("tensor ", in_quotes(tensor.name), ": it ends at byte ",
                             end + tensor.bytes, " of the data, which has ", data_bytes));
    }
    end += tensor.bytes;
  }
  if (end == data_bytes) return;
  throw Problem(
      c10::str("the last tensor ends at byte ", end, " of the data, which has ", data_bytes));
}

/// The header's text. Throws Problem or an exception of Json's.
std::string_view header_in(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw Problem(
        c10::str("it has ", file.size(), " bytes, fewer than the 8 of a header's length"));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    throw Problem("it is no safetensors file (torch.save() writes none), or cut off");
  }
  const auto* const text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') {
    throw Problem("it is no safetensors file: its header does not begin with '{'");
  }
  return {text, length};
}

/// Lays out the tensors: types of larger alignment first, then by name.
std::vector<TensorEntry> entries_of(const NamedTensors& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& item : tensors) {
    const at::Tensor& tensor = item.value();
    check_dense(item.key(), tensor);
    const auto type = to_data_type(tensor.scalar_type());
    if (!type || item.key() == kMetadata) {
      refuse_tensor(item.key(), "a tensor of type ", tensor.scalar_type(),
                    " and this name cannot be written; expected numbers or "
                    "booleans, and another name than ",
                    kMetadata);
    }
    const auto place = std::ranges::find(kTypes, *type, &TypeName::type) - kTypes.begin();
    entries.push_back({item.key(), static_cast<std::size_t>(place), tensor.sizes().vec(), 0,
                       size_of(*type) * static_cast<std::uint64_t>(tensor.numel())});
  }
  std::ranges::sort(entries, [](const TensorEntry& a, const TensorEntry& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
  std::uint64_t end = 0;
  for (TensorEntry& entry : entries) entry.offset = std::exchange(end, end + entry.bytes);
  return entries;
}

/// The file's begin, to its first tensor, padded to 8 bytes.
std::string header_of(const std::vector<TensorEntry>& tensors, const Metadata& metadata) {
  std::string header(kLengthBytes, '\0');
  try {
    header += "{";
    if (!metadata.empty()) header += Json(kMetadata).dump() + ":" + Json(metadata).dump() + ",";
    for (const TensorEntry& tensor : tensors) {
      header.append(Json(tensor.name).dump()).append(R"(:{"dtype":")");
      header.append(kTypes[tensor.type].name).append(R"(","shape":[)");
      for (const std::int64_t extent : tensor.shape) header.append(std::to_string(extent)) += ',';
      if (header.back() == ',') header.pop_back();
      header.append(R"(],"data_offsets":[)").append(std::to_string(tensor.offset)) += ',';
      header.append(std::to_string(tensor.offset + tensor.bytes)).append("]},");
    }
  } catch (const Json::exception& error) {
    refuse_argument("these tensors make no safetensors file: a name is no UTF-8: ", error.what());
  }
  if (header.back() == ',') header.pop_back();
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    throw Error(ErrorCode::invalid_argument,
                "these tensors make no safetensors file: its header is over 100 MB");
  }
  std::memcpy(header.data(), &length, kLengthBytes);
  return header;
}

}  // namespace

void check_can_fill(const NamedTensors& tensors) {
  header_of(entries_of(tensors), {});
}

void fill_image(Bytes& image, const NamedTensors& tensors, const Metadata& metadata) {
  const std::vector<TensorEntry> entries = entries_of(tensors);
  const std::string header = header_of(entries, metadata);
  const std::uint64_t data = entries.empty() ? 0 : entries.back().offset + entries.back().bytes;
  image.resize(header.size() + data);
  std::memcpy(image.data(), header.data(), header.size());
  const at::NoGradGuard no_grad;
  for (const TensorEntry& entry : entries) {
    if (entry.bytes == 0) continue;
    const at::Tensor& tensor = tensors[entry.name];
    std::byte* const place = image.data() + header.size() + entry.offset;
    if (tensor.is_cpu() && tensor.is_contiguous()) {
      std::memcpy(place, tensor.data_ptr(), entry.bytes);
    } else {
      at::from_blob(place, entry.shape, at::TensorOptions(tensor.scalar_type())).copy_(tensor);
    }
  }
}

tl::expected<ImageContents, std::string> contents_of(Bytes bytes) {
  const auto file = std::make_shared<Bytes>(std::move(bytes));
  ImageContents contents;
  std::string name;
  try {
    const std::string_view text = header_in(*file);
    std::vector<TensorEntry> tensors;
    const Json header = parsed_header(text);
    for (const auto& item : header.items()) {
      name = item.key();
      if (name == kMetadata) {
        item.value().get_to(contents.metadata);
      } else {
        tensors.push_back(entry_of(name, item.value()));
      }
    }
    name.clear();
    std::byte* const data = file->data() + kLengthBytes + text.size();
    check_ranges(tensors, file->size() - kLengthBytes - text.size());
    for (const TensorEntry& entry : tensors) {
      const c10::ScalarType type = to_scalar_type(kTypes[entry.type].type);
      if (type == c10::ScalarType::Undefined) {
        throw Problem(c10::str("tensor ", in_quotes(entry.name),
                               ": this version of LibTorch has no ", "type ",
                               kTypes[entry.type].name));
      }
      contents.tensors.insert(entry.name, entry.bytes == 0
                                              ? at::empty(entry.shape, at::TensorOptions(type))
                                              : at::from_blob(
                                                    data + entry.offset, entry.shape,
                                                    [file](void*) {}, at::TensorOptions(type)));
    }
  } catch (const Json::parse_error& error) {
    return tl::unexpected(c10::str("the header is no JSON: ", error.what()));
  } catch (const std::exception& error) {
    return tl::unexpected((name.empty() ? "" : "tensor " + in_quotes(name) + ": ") + error.what());
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

void save_safetensors(const std::string& path, const NamedTensors& tensors) {
  Bytes image;
  fill_image(image, tensors);
  replace_durably(path, image);
}

NamedTensors load_safetensors(const std::string& path) {
  const auto contents =
      read_file(path, std::numeric_limits<std::int64_t>::max()).and_then(contents_of);
  if (!contents) {
    throw Error(ErrorCode::invalid_argument, in_quotes(path) + ": " + contents.error());
  }
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
  const auto refuse = [](const std::string& name, const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "load_weights(): " + in_quotes(name) + " " + what, -1,
                name);
  };
  const NamedTensors own = weights_of(module);
  for (const auto& item : own) {
    const torch::Tensor* const given = weights.find(item.key());
    if (given == nullptr) {
      refuse(item.key(), "is in the module, but not in the weights");
    } else if (given->sizes() != item.value().sizes()) {
      refuse(item.key(),
             c10::str("has the shape ", given->sizes(), " in the weights; expected the module's, ",
                      item.value().sizes()));
    }
  }
  for (const auto& item : weights) {
    if (!own.contains(item.key())) refuse(item.key(), "is in the weights, but not in the module");
  }
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    torch::Tensor into = item.value();
    into.copy_(weights[item.key()]);
  }
}

}  // namespace hora
