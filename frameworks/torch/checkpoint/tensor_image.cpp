#include "frameworks/torch/checkpoint/tensor_image.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/printable.h>

#include <cstring>
#include <utility>

#include "frameworks/torch/checkpoint/safetensors.h"
#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
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

SafetensorsLayout layout_of_file(const NamedTensors& tensors,
                                 const std::map<std::string, std::string>& metadata) {
  auto layout = lay_out_safetensors(entries_of(tensors), metadata);
  if (layout) return std::move(*layout);
  throw Error(ErrorCode::invalid_argument,
              "these tensors make no safetensors file: " + layout.error());
}

}  // namespace

void check_can_fill(const NamedTensors& tensors) {
  layout_of_file(tensors, {});
}

void TensorImage::fill(const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const SafetensorsLayout layout = layout_of_file(tensors, metadata);
  bytes_.resize(layout.bytes);
  std::memcpy(bytes_.data(), layout.header.data(), layout.header.size());
  const at::NoGradGuard no_grad;
  for (const TensorEntry& entry : layout.tensors) {
    if (entry.bytes == 0) continue;
    const at::Tensor& tensor = tensors[entry.name];
    at::from_blob(bytes_.data() + entry.offset, entry.shape,
                  at::TensorOptions(tensor.scalar_type()))
        .copy_(tensor);
  }
}

tl::expected<ImageContents, std::string> contents_of(const std::shared_ptr<const Bytes>& file) {
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
    // Bytes are never written through it: what is loaded is copied.
    auto* const data = const_cast<std::byte*>(file->data() + entry.offset);
    contents.tensors.insert(
        entry.name, entry.bytes == 0
                        ? at::empty(entry.shape, at::TensorOptions(type))
                        : at::from_blob(
                              data, entry.shape, [file](void*) {}, at::TensorOptions(type)));
  }
  return contents;
}

}  // namespace hora::internal
