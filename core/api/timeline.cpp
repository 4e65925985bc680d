#include <hora/error.h>
#include <hora/printable.h>
#include <hora/timeline.h>

#include "core/engine/runtime.h"
#include "core/trace/timeline_file.h"

namespace hora {

std::string start_timeline(const Context& context, const std::string& path) {
  context.runtime()->check_running();
  const std::string wrong = wrong_with_timeline_path(path);
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument, "start_timeline(" + in_quotes(path) + "): " + wrong,
                context.rank());
  }
  const EngineParts& parts = context.runtime()->parts();
  const std::string file = timeline_file(path, parts.rank);
  parts.trace.trace()->start(file, identity_of(parts.world.topology, parts.rank));
  return file;
}

void stop_timeline(const Context& context) {
  context.runtime()->check_owner();
  context.runtime()->parts().trace.trace()->stop();
}

}  // namespace hora
