#include "frameworks/torch/instance_number.h"

#include <map>
#include <memory>
#include <mutex>

namespace hora {

std::uint32_t next_instance_number(const Context& context) {
  // Kept beside the context, because core knows no optimizers. Contexts that are gone are
  // forgotten, so a new one begins at 0 on every rank.
  static std::mutex mutex;
  static std::map<std::weak_ptr<Runtime>, std::uint32_t, std::owner_less<std::weak_ptr<Runtime>>>
      counts;
  const std::lock_guard lock(mutex);
  std::erase_if(counts, [](const auto& entry) { return entry.first.expired(); });
  return counts[context.runtime()]++;
}

}  // namespace hora
