/// Staging whose sums take a while, as a GPU's do.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "ops/cross/cross_work.h"

namespace hora::internal::test {

/// A sum is complete after a random number of polls. Until then its output holds garbage, and its
/// inputs must not change: std::logic_error. Counts what is allocated.
class SlowSpace final : public StagingSpace {
 public:
  explicit SlowSpace(std::mt19937_64& random) : random_(random) {}

  std::byte* allocate(std::size_t bytes) override {
    ++allocations_;
    return host_space().allocate(bytes);
  }
  void release(std::byte* data) noexcept override { host_space().release(data); }
  Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, std::size_t count) override {
    Bytes result(count * size_of(reduction.type));
    host_space().reduce(reduction, inputs, result.data(), count);
    return later({inputs.begin(), inputs.end()}, result.size(), std::move(result), output);
  }
  Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                     std::size_t count) override {
    Bytes result(count * size_of(target));
    host_space().convert(source, input, target, result.data(), count);
    return later({input}, count * size_of(source), std::move(result), output);
  }

  int allocations() const { return allocations_; }

 private:
  using Bytes = std::vector<std::byte>;
  class Later final : public PendingWork {
   public:
    Later(std::vector<const std::byte*> inputs, std::size_t input_bytes, Bytes result,
          std::byte* output, std::uint64_t polls)
        : inputs_(std::move(inputs)), result_(std::move(result)), output_(output), polls_(polls) {
      // The output may be one of the inputs.
      std::erase(inputs_, output_);
      for (const std::byte* input : inputs_) before_.emplace_back(input, input + input_bytes);
      std::fill_n(output_, result_.size(), std::byte{0xAB});
    }
    bool poll() override {
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (!std::equal(before_[i].begin(), before_[i].end(), inputs_[i])) {
          throw std::logic_error("an input changed while it was being summed");
        }
      }
      if (polls_-- > 0) return false;
      std::copy(result_.begin(), result_.end(), output_);
      return true;
    }

   private:
    std::vector<const std::byte*> inputs_;
    Bytes result_;
    std::byte* output_;
    std::uint64_t polls_;
    std::vector<Bytes> before_;
  };

  Completion later(std::vector<const std::byte*> inputs, std::size_t input_bytes, Bytes result,
                   std::byte* output) {
    return Completion(std::make_unique<Later>(std::move(inputs), input_bytes, std::move(result),
                                              output, random_() % 4));
  }

  std::mt19937_64& random_;
  int allocations_ = 0;
};

}  // namespace hora::internal::test
