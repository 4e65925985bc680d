#include "tests/support/seed.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace hora::internal::test {
namespace {

std::optional<std::uint64_t> stored_seed;

// FNV-1a, 64 bits: std::hash may differ from one standard library to the next.
std::uint64_t hash(std::string_view text, std::uint64_t state) {
  for (const char character : text) {
    state ^= static_cast<unsigned char>(character);
    state *= 0x100000001b3U;
  }
  return state;
}

}  // namespace

std::uint64_t choose_seed() {
  const char* text = std::getenv("TEST_SEED");
  if (text == nullptr) {
    std::random_device device;
    return device();
  }
  const std::string_view digits(text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw std::invalid_argument("TEST_SEED is '" + std::string(digits) +
                                "'; expected an unsigned decimal number of at most 64 bits");
  }
  return value;
}

void set_seed(std::uint64_t value) {
  stored_seed = value;
}

std::uint64_t seed() {
  if (!stored_seed) throw std::logic_error("main() has not called set_seed()");
  return *stored_seed;
}

std::mt19937_64 generator(std::uint64_t salt) {
  std::uint64_t state = 0xcbf29ce484222325U;
  if (const auto* test = testing::UnitTest::GetInstance()->current_test_info()) {
    state = hash(test->test_suite_name(), state);
    state = hash(test->name(), state);
  }
  std::seed_seq sequence{seed() >> 32U,       seed() & 0xffffffffU, state >> 32U,
                         state & 0xffffffffU, salt >> 32U,          salt & 0xffffffffU};
  return std::mt19937_64(sequence);
}

}  // namespace hora::internal::test
