/// Texts of messages: ranks, times, names; names that hora itself gives to collectives.
#pragma once

#include <hora/export.h>
#include <hora/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace hora::internal {

/// Begins the names of collectives that were given none, followed by kind and number.
inline constexpr std::string_view kUnnamedPrefix = "hora.unnamed.";
/// Names of hora's own calls.
inline constexpr std::string_view kJoinName = "hora.join";
inline constexpr std::string_view kAddSetName = "hora.process_sets.add";
inline constexpr std::string_view kRemoveSetName = "hora.process_sets.remove";
/// "hora.gradients.<optimizer>.<bucket>", and others of an optimizer; bucket 0 is full first.
inline constexpr std::string_view kGradientsName = "hora.gradients.";
/// Before the number of a layout that is not the optimizer's first one, and that before the
/// bucket's: "hora.gradients.0.layout1.3".
inline constexpr std::string_view kLayoutName = "layout";
/// "hora.sync_batch_norm.<layer>", and with ".backward" after it.
inline constexpr std::string_view kSyncBatchNormName = "hora.sync_batch_norm.";
inline constexpr std::string_view kBackwardEnd = ".backward";

/// `tensor "weight"`; for names that no user has given what was called: "the unnamed barrier in
/// slot 1" (slot 0 was in flight), "join()"; for none "an unnamed tensor".
HORA_EXPORT std::string tensor_text(std::string_view name);
/// The same, with " of process set 3" after it where that is not the world.
std::string tensor_text(std::string_view name, ProcessSet set);

/// Whether another byte begins the character (UTF-8) that this one is a part of.
inline bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}
/// The first bytes of a text that fit, without a part of a character (UTF-8) at the end.
std::string_view fitting(std::string_view text, std::size_t most) noexcept;

/// "0-2, 5" for ascending ranks.
std::string ranks_text(std::span<const int> ranks);
/// "rank 3", or "ranks 0-2".
HORA_EXPORT std::string named_ranks(std::span<const int> ranks);
/// "rank 3 has", or "ranks 0-2 have".
std::string ranks_have(std::span<const int> ranks);

/// "12.3 s".
std::string seconds_text(std::chrono::nanoseconds length);

}  // namespace hora::internal
