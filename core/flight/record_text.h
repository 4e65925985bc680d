/// Texts in a flight record's memory.
#pragma once

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace hora::internal {

/// The first bytes that fit, without a part of a character (UTF-8).
inline std::string_view fitting(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return text.substr(0, most);
}

template <std::size_t Words>
void store_bytes(std::array<std::atomic<std::uint64_t>, Words>& words,
                 const std::array<char, Words * 8>& bytes) noexcept {
  for (std::size_t i = 0; i < Words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    words[i].store(word, std::memory_order_release);
  }
}

template <std::size_t Words>
void store_text(std::array<std::atomic<std::uint64_t>, Words>& words,
                std::string_view text) noexcept {
  std::array<char, Words * 8> bytes{};
  const std::string_view part = fitting(text, bytes.size());
  std::copy(part.begin(), part.end(), bytes.begin());
  store_bytes(words, bytes);
}

/// Printable, whatever is there.
template <std::size_t Words>
std::string text_of(const std::array<std::atomic<std::uint64_t>, Words>& words) {
  std::array<char, Words * 8> bytes{};
  for (std::size_t i = 0; i < Words; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_acquire);
    std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
  }
  const auto end = std::find(bytes.begin(), bytes.end(), '\0');
  return printable({bytes.data(), static_cast<std::size_t>(end - bytes.begin())});
}

}  // namespace hora::internal
