/// Random numbers that are the same with every standard library and on every host.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace vision {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014,
/// section 4). Small enough to start one for each image.
class Random {
 public:
  /// The stream named by `key`, such as {seed, epoch, image}.
  explicit Random(std::initializer_list<std::uint64_t> key) {
    for (const std::uint64_t part : key) {
      state_ = mix(state_ + increment + part);
    }
  }
  std::uint64_t next() { return mix(state_ += increment); }
  /// Uniform in 0 .. bound-1; `bound` must not be 0.
  std::uint64_t below(std::uint64_t bound) {
    // The first 2^64 mod bound values would make the small remainders more likely.
    const std::uint64_t unfair = (0 - bound) % bound;
    std::uint64_t value = next();
    while (value < unfair) value = next();
    return value % bound;
  }
  /// Uniform in [from, to), or `from` where they are equal; takes 53 bits.
  double uniform(double from, double to) {
    return from + (to - from) * (static_cast<double>(next() >> 11U) * 0x1p-53);
  }

 private:
  static constexpr std::uint64_t increment = 0x9e3779b97f4a7c15U;
  static std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
  }

  std::uint64_t state_ = 0;
};

}  // namespace vision
