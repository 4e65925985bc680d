/// Staging whose sums take a while, as a GPU's do.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "ops/mpi/host_space.h"

namespace hora::test {

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
    return Completion(std::make_unique<Sum>(
        reduction, std::vector<const std::byte*>(inputs.begin(), inputs.end()), output, count,
        random_() % 4));
  }

  int allocations() const { return allocations_; }

 private:
  using Bytes = std::vector<std::byte>;
  class Sum final : public PendingWork {
   public:
    Sum(const Reduction& reduction, std::vector<const std::byte*> inputs, std::byte* output,
        std::size_t count, std::uint64_t polls)
        : inputs_(std::move(inputs)),
          output_(output),
          bytes_(count * size_of(reduction.type)),
          result_(bytes_),
          polls_(polls) {
      host_space().reduce(reduction, inputs_, result_.data(), count);
      // The output may be one of the inputs.
      std::erase(inputs_, output_);
      for (const std::byte* input : inputs_) before_.emplace_back(input, input + bytes_);
      std::fill_n(output_, bytes_, std::byte{0xAB});
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
    std::byte* output_;
    std::size_t bytes_;
    Bytes result_;
    std::uint64_t polls_;
    std::vector<Bytes> before_;
  };

  std::mt19937_64& random_;
  int allocations_ = 0;
};

}  // namespace hora::test
