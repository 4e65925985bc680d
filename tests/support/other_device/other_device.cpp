#include "tests/support/other_device/other_device.h"

#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace hora::internal::test {
namespace {

#if TORCH_VERSION_MAJOR >= 2
template <class T>
using Optional = std::optional<T>;
#else
template <class T>
using Optional = c10::optional<T>;
#endif

constexpr auto kOther = c10::DeviceType::HPU;

thread_local c10::DeviceIndex current_index = 0;

/// Streams that nothing waits for: operations are done when they return.
class DeviceGuards final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kOther; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kOther, std::exchange(current_index, device.index())};
  }
  c10::Device getDevice() const override { return {kOther, current_index}; }
  void setDevice(c10::Device device) const override { current_index = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_index = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return other_devices; }
};
C10_REGISTER_GUARD_IMPL(HPU, DeviceGuards);

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         Optional<at::ScalarType> type, Optional<at::Layout>,
                         Optional<at::Device> device, Optional<bool>) {
  const auto index = device && device->has_index() ? device->index() : current_index;
  const caffe2::TypeMeta meta = c10::scalarTypeToTypeMeta(type.value_or(at::kFloat));
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    elements = sizes[i] == 0 ? 0 : elements + (sizes[i] - 1) * strides[i];
    if (elements == 0) break;
  }
  const auto bytes = static_cast<std::size_t>(elements) * meta.itemsize();
  auto owned = std::make_unique<std::vector<std::byte>>(std::max<std::size_t>(bytes, 1));
  void* const data = owned->data();
  c10::DataPtr memory(
      data, owned.release(),
      [](void* vector) { delete static_cast<std::vector<std::byte>*>(vector); },
      c10::Device(kOther, index));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::HPU), meta);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, Optional<at::ScalarType> type, Optional<at::Layout> layout,
                 Optional<at::Device> device, Optional<bool> pinned,
                 Optional<at::MemoryFormat> format) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  }
  if (format == at::MemoryFormat::ChannelsLast) strides = c10::get_channels_last_strides_2d(sizes);
  return empty_strided(sizes, strides, type, layout, device, pinned);
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

/// Copies the result of an operation on the CPU into an argument that it writes.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "tensors of other devices keep their sizes");
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                      Optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& tensor, at::IntArrayRef sizes) {
  return at::native::view(tensor, sizes);
}

at::Tensor view_as(const at::Tensor& tensor, at::ScalarType type) {
  return at::native::view_dtype(tensor, type);
}

at::Tensor reshape_alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(tensor, sizes, strides);
}

at::Tensor& set(at::Tensor& tensor, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                at::IntArrayRef strides) {
  c10::TensorImpl* const implementation = tensor.unsafeGetTensorImpl();
  implementation->set_storage_keep_dtype(std::move(storage));
  implementation->set_storage_offset(offset);
  implementation->set_sizes_and_strides(sizes, strides);
  return tensor;
}

/// Whatever is not above.
void run_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* arguments) {
  at::native::cpu_fallback(operation, arguments);
}

}  // namespace
}  // namespace hora::internal::test

TORCH_LIBRARY_IMPL(_, HPU, library) {
  using hora::internal::test::run_on_host;
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  using namespace hora::internal::test;
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("view.dtype", view_as);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set);
}
