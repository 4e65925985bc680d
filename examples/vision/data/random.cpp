#include "examples/vision/data/random.h"

namespace vision {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

Random::Random(std::initializer_list<std::uint64_t> key) {
  for (const std::uint64_t part : key) {
    state_ = mix(state_ + 0x9e3779b97f4a7c15U + part);
  }
}

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15U;
  return mix(state_);
}

std::uint64_t Random::below(std::uint64_t bound) {
  // The first 2^64 mod bound values would make the small remainders more likely.
  const std::uint64_t unfair = (0 - bound) % bound;
  std::uint64_t value = next();
  while (value < unfair) {
    value = next();
  }
  return value % bound;
}

double Random::uniform(double from, double to) {
  const double share = static_cast<double>(next() >> 11U) * 0x1p-53;
  return from + (to - from) * share;
}

}  // namespace vision
