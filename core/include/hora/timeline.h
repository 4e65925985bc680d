/// A timeline of this rank's collectives: when each tensor was negotiated, queued, averaged (or
/// exchanged) and waited for, and when the GPU worked. Open it in https://ui.perfetto.dev or
/// chrome://tracing.
///
///     hora::start_timeline(world, "train.%r.json");            // %r: the rank
///     train_one_epoch();
///     hora::stop_timeline(world);
///
/// Arguments of "negotiate": the rank that came last, and how many microseconds after the one
/// before it ("last_rank", "late_us"), where the name was known already; of several nodes on rank 0
/// alone.
///
/// Rows: threads that wait; the GPU's streams; slots of chunks between nodes; one row a tensor.
/// Those of a process set other than the world have its number beside them: "loss (set 1)". pid is
/// the rank. Times are the host's steady clock in microseconds, so the files of one host's ranks
/// fit together as they are; for several hosts, the event "hora_timeline" holds the wall clock at
/// the same moment as the steady one.
///
/// A file that was stopped is valid JSON (an array). In one that a crash has left, the closing
/// bracket is missing, and at most the last fifth of a second's events: the format allows that.
/// Memory is bounded: when events come faster than they are written they are dropped, the file says
/// how many ("dropped_events"), and no caller waits.
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <string>

namespace HORA_EXPORT hora {

/// Starts writing, on this rank alone, and returns the file's name: `path` with each "%r" replaced
/// by the rank; where it has none, ".<rank>" is put before the extension. A regular file of that
/// name is replaced; the new one is the user's own (mode 0600). Throws Error(invalid_argument)
/// where it cannot be written, or something else has that name, a link too; Error(invalid_use)
/// while a timeline is being written already; Error(shut_down). Thread rule: any thread,
/// collectives may be under way.
///
/// `HORA_TIMELINE=<path>` does the same on all ranks, from init() on.
std::string start_timeline(const Context& context, const std::string& path);

/// Completes the file, on this rank alone; nothing where no timeline is being written. Work that a
/// GPU was given before is waited for, up to one second. shutdown() does the same. Throws
/// Error(transport) where not all could be written. Thread rule: as above.
void stop_timeline(const Context& context);

}  // namespace hora
