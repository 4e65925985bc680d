/// A unit over the memory of a node's ranks, with guard bytes around every tensor.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "core/plan/plan.h"

namespace hora::internal::test {

/// Tensors of one type on `local_size` ranks, each filled with small whole numbers.
template <class T>
class BoundTensors {
 public:
  BoundTensors(const std::vector<std::int64_t>& elements, int local_size, std::mt19937_64& random)
      : elements_(elements), local_size_(local_size) {
    for (std::size_t t = 0; t < elements.size(); ++t) {
      for (int r = 0; r < local_size; ++r) {
        const auto count = static_cast<std::size_t>(elements[t]);
        auto& values = memory_.emplace_back(count + 2 * kGuard, kGuardValue);
        for (std::size_t i = 0; i < count; ++i) {
          values[kGuard + i] = static_cast<T>(static_cast<int>(random() % 50));
        }
      }
    }
    before_ = memory_;
  }

  BoundUnit unit(OperationKind kind, const PlanLimits& limits, double scale = 1.0) {
    std::vector<Signature> signatures;
    for (const std::int64_t count : elements_) {
      Signature signature;
      signature.kind = kind;
      signature.type = data_type_of<T>;
      signature.shape = {count};
      signatures.push_back(signature);
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    BoundUnit bound;
    bound.unit = plan(pointers, limits).at(0);
    bound.scale = scale;
    bound.local_size = local_size_;
    for (auto& values : memory_) {
      bound.memory.push_back(reinterpret_cast<std::byte*>(values.data() + kGuard));
    }
    return bound;
  }

  T before(std::size_t tensor, int rank, std::size_t at) const {
    return before_[index(tensor, rank)][kGuard + at];
  }
  T now(std::size_t tensor, int rank, std::size_t at) const {
    return memory_[index(tensor, rank)][kGuard + at];
  }
  T sum(std::size_t tensor, std::size_t at) const {
    T result{};
    for (int r = 0; r < local_size_; ++r) result = static_cast<T>(result + before(tensor, r, at));
    return result;
  }
  bool unchanged() const { return memory_ == before_; }
  bool guards_intact() const {
    for (const auto& values : memory_) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        if (values[i] != kGuardValue || values[values.size() - 1 - i] != kGuardValue) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 8;
  static constexpr T kGuardValue = static_cast<T>(99);
  std::size_t index(std::size_t tensor, int rank) const {
    return tensor * static_cast<std::size_t>(local_size_) + static_cast<std::size_t>(rank);
  }

  std::vector<std::int64_t> elements_;
  int local_size_;
  std::vector<std::vector<T>> memory_;
  std::vector<std::vector<T>> before_;
};

}  // namespace hora::internal::test
