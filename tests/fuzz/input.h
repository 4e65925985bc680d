/// A fuzzer's bytes, as values: past their end everything is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace hora::internal::test {

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::size_t bytes = rest_.size() < sizeof value ? rest_.size() : sizeof value;
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  /// 0 .. count - 1.
  std::size_t below(std::size_t count) { return take<std::uint8_t>() % count; }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace hora::internal::test
