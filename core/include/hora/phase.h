/// Phases and progress of the program, in messages and for elastic jobs.
///
///     hora::note_phase(world, "epoch " + std::to_string(epoch) + ", validation");
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <cstdint>
#include <string_view>

namespace HORA_EXPORT hora {

/// Notes what this rank does from now on, for errors and the flight record: 128 bytes are kept.
/// Throws Error(shut_down). Thread rule: any thread; the last writer wins.
void note_phase(const Context& context, std::string_view phase);

/// Notes that the training could go on from `step`, >= 0, were this job to end now; first of all,
/// the step from which it does go on. Checkpoint does so; for programs with files of their own.
/// `horarun --elastic` says how many steps are lost, and ends a job of which a rank fails again and
/// again without getting on. Otherwise as note_phase().
void note_resumable(const Context& context, std::int64_t step);

/// Returns 1, or the number of this generation of a job of `horarun --elastic`: above 1 the program
/// is to load() and go on, whatever its command line says. Thread rule: any thread.
int generation() noexcept;

/// Whether `horarun --elastic` asks this generation to give way to another, with other hosts.
/// Checkpoint::commit() looks and does so; for programs with files of their own, which agree on it:
/// ranks see it at different times. Thread rule: any thread.
bool is_asked_to_give_way() noexcept;
/// Ends this process without destructors; called by all ranks, when the training can go on from
/// what they have kept.
[[noreturn]] void give_way() noexcept;

}  // namespace hora
