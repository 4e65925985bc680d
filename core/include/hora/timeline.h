/// A timeline of this rank's collectives, for https://ui.perfetto.dev or chrome://tracing;
/// docs/failures.md says what is in it.
///
///     hora::start_timeline(world, "train.%r.json");            // %r: the rank
///     train_one_epoch();
///     hora::stop_timeline(world);
///
/// Events that come too fast are dropped and counted. Thread rule: any thread.
#pragma once

#include <hora/context.h>
#include <hora/export.h>

#include <string>

namespace HORA_EXPORT hora {

/// Starts writing on this rank, as HORA_TIMELINE does on all from init() on, and returns the file's
/// name: `path` with the rank for each "%r", else before the extension. Replaces a regular file of
/// that name (mode 0600). Throws Error(invalid_argument) where it cannot be written, or something
/// else, a link too, has that name; Error(invalid_use) while one is being written;
/// Error(shut_down).
std::string start_timeline(const Context& context, const std::string& path);

/// Completes the file, if there is one, after work that a GPU was given before (for one second at
/// most), as shutdown() does. Throws Error(transport) where not all could be written.
void stop_timeline(const Context& context);

}  // namespace hora
