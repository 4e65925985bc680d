/// In place of core/control_block/atomic.h's: each access is a step of the explorer.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "tests/support/model/explorer.h"

namespace hora::internal {

/// As large as T, and valid in memory that is all zero.
template <class T>
class Atomic {
 public:
  static_assert(std::is_integral_v<T>);
  Atomic() = default;
  explicit Atomic(T value) : first_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(std::memory_order order = std::memory_order_seq_cst) const {
    return static_cast<T>(model::load(this, first(), order));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) {
    model::store(this, first(), bits(value), order);
  }
  T fetch_add(T value, std::memory_order order = std::memory_order_seq_cst) {
    return update(order, [&](T old) { return static_cast<T>(old + value); });
  }
  bool compare_exchange_strong(T& expected, T value,
                               std::memory_order order = std::memory_order_seq_cst) {
    const T wanted = std::exchange(expected, update(order, [&](T old) {
                                     return old == expected ? std::optional(value) : std::nullopt;
                                   }));
    return expected == wanted;
  }
  bool compare_exchange_weak(T& expected, T value,
                             std::memory_order order = std::memory_order_seq_cst) {
    return compare_exchange_strong(expected, value, order);
  }

  std::uint64_t first() const { return bits(first_); }

 private:
  static std::uint64_t bits(T value) {
    return static_cast<std::uint64_t>(static_cast<std::make_unsigned_t<T>>(value));
  }
  template <class Change>
  T update(std::memory_order order, Change&& change) {
    return static_cast<T>(
        model::update(this, first(), order, [&](std::uint64_t old) -> std::optional<std::uint64_t> {
          const std::optional<T> value = change(static_cast<T>(old));
          return value ? std::optional(bits(*value)) : std::nullopt;
        }));
  }

  T first_ = 0;  ///< what it holds until the first store; the explorer has the rest
};

/// Data that one thread writes and others read: accesses must be ordered by what is between.
template <class T>
class Plain {
 public:
  Plain() = default;
  Plain(const Plain& other) : value_(other) {}
  Plain& operator=(const Plain& other) { return *this = static_cast<T>(other); }
  Plain& operator=(const T& value) {
    model::write_plain(this);
    value_ = value;
    return *this;
  }
  operator T() const {
    model::read_plain(this);
    return value_;
  }

 private:
  T value_;
};

}  // namespace hora::internal
