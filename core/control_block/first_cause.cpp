#include <hora/printable.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/checked.h"
#include "core/control_block/rank_status.h"

namespace hora::internal {
namespace {

/// Publishing takes less than a microsecond, unless the writer is preempted, or dies.
constexpr auto kPatience = std::chrono::milliseconds(10);

std::uint32_t write(std::string_view text, std::span<char> place) {
  const std::size_t bytes = std::min(text.size(), place.size());
  std::copy_n(text.data(), bytes, place.data());
  return static_cast<std::uint32_t>(bytes);
}

std::string read(std::span<const char> place, std::uint32_t bytes) {
  return {place.data(), std::min<std::size_t>(bytes, place.size())};
}

}  // namespace

bool FirstCause::publish(const Error& error) {
  std::uint32_t none = FirstCauseMemory::kNone;
  if (!memory_.state.compare_exchange_strong(none, FirstCauseMemory::kPublishing, kWakeOrder)) {
    return false;
  }
  memory_.code = static_cast<std::uint32_t>(error.code());
  memory_.rank = error.rank();
  memory_.text_bytes = write(printable(error.what(), memory_.text.size()), memory_.text);
  memory_.tensor_bytes = write(error.tensor(), memory_.tensor);
  memory_.state.store(FirstCauseMemory::kPublished, kWakeOrder);
  return true;
}

std::optional<Error> FirstCause::get() const {
  const auto begin = std::chrono::steady_clock::now();
  while (memory_.state.load(kWakeOrder) == FirstCauseMemory::kPublishing &&
         std::chrono::steady_clock::now() - begin < kPatience) {
    std::this_thread::yield();
  }
  if (!is_published()) return std::nullopt;
  const auto code = static_cast<ErrorCode>(static_cast<std::uint8_t>(memory_.code));
  return Error(is_enumerator(code) ? code : ErrorCode::transport,
               read(memory_.text, memory_.text_bytes), memory_.rank,
               read(memory_.tensor, memory_.tensor_bytes));
}

}  // namespace hora::internal
