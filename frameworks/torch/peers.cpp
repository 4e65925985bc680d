#include "frameworks/torch/peers.h"

#include <hora/error.h>
#include <hora/process_set.h>

#include <algorithm>
#include <string>

namespace hora {

Peers peers_of(const Context& context, ProcessSet set) {
  if (set == 0) return {context, 0, context.size(), context.rank(), 0};
  const auto members = ranks_of(context, set);
  const auto me = std::find(members.begin(), members.end(), context.rank());
  if (me == members.end()) {
    throw Error(ErrorCode::invalid_argument,
                "process set " + std::to_string(set) +
                    " does not hold this rank: only its members may use it",
                context.rank());
  }
  return {context, set, static_cast<int>(members.size()), static_cast<int>(me - members.begin()),
          members.front()};
}

}  // namespace hora
