/// One allocator interface for all versions of LibTorch.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace hora::internal {

/// Up to LibTorch 2.2 c10::Allocator::allocate() is const, from then on it is not; copy_data() came
/// with 2.2. `Interface`: c10::Allocator.
template <class Interface, class Allocate>
class C10AllocatorOf;

template <class Interface>
class C10AllocatorOf<Interface, c10::DataPtr (Interface::*)(std::size_t) const> : public Interface {
 public:
  c10::DataPtr allocate(std::size_t bytes) const final { return take(bytes); }

 protected:
  virtual c10::DataPtr take(std::size_t bytes) const = 0;
};

template <class Interface>
class C10AllocatorOf<Interface, c10::DataPtr (Interface::*)(std::size_t)> : public Interface {
 public:
  c10::DataPtr allocate(std::size_t bytes) final { return take(bytes); }
  void copy_data(void* target, const void* source, std::size_t bytes) const final {
    std::memcpy(target, source, bytes);
  }

 protected:
  virtual c10::DataPtr take(std::size_t bytes) const = 0;
};

using C10Allocator = C10AllocatorOf<c10::Allocator, decltype(&c10::Allocator::allocate)>;

}  // namespace hora::internal
