#include "ops/local/update.h"

#include <hora/error.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "ops/local/update_table.h"

namespace hora::internal {
namespace {

const UpdateTable& updates() noexcept {
  static const UpdateTable& best = *runnable_updates()[0];
  return best;
}

std::size_t number_of(DataType type) {
  if (type == DataType::float32) return 0;
  if (type == DataType::float64) return 1;
  throw Error(ErrorCode::invalid_argument,
              "hora::update takes float32 and float64; got " + std::string(name_of(type)));
}

/// Shorter runs leave the copies in a cache, from which the others read them.
constexpr std::size_t kStreamBytes = std::size_t{32} << 10;

template <class Step, class Kernel>
void run(const Kernel (&kernels)[2], DataType type, const Step& step, const UpdateMemory& memory,
         std::size_t begin, std::size_t end) {
  const Kernel kernel = kernels[number_of(type)];
  if (memory.gradients.empty()) {
    throw Error(ErrorCode::invalid_argument, "hora::update needs at least one gradient; got none");
  }
  if (begin == end) return;
  UpdateArrays arrays{.parameter = memory.parameter,
                      .gradients = memory.gradients.data(),
                      .gradient_count = memory.gradients.size(),
                      .scales = memory.scales,
                      .copies = memory.copies.data(),
                      .copy_count = memory.copies.size(),
                      .streams = (end - begin) * size_of(type) >= kStreamBytes};
  std::copy(std::begin(memory.state), std::end(memory.state), arrays.state);
  kernel(step, arrays, begin, end);
}

}  // namespace

const UpdateTable* const* runnable_updates() noexcept {
  static const struct Runnable {
    const UpdateTable* tables[4] = {};
    Runnable() noexcept {
      std::size_t count = 0;
#ifdef HORA_LOCAL_X86
      if (__builtin_cpu_supports("avx512f")) tables[count++] = &kAvx512Updates;
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        tables[count++] = &kAvx2Updates;
      }
#endif
      tables[count] = &kBaselineUpdates;
    }
  } runnable;
  return runnable.tables;
}

void update(DataType type, const SgdStep& step, const UpdateMemory& memory, std::size_t begin,
            std::size_t end) {
  run(updates().sgd, type, step, memory, begin, end);
}

void update(DataType type, const AdamStep& step, const UpdateMemory& memory, std::size_t begin,
            std::size_t end) {
  run(updates().adam, type, step, memory, begin, end);
}

}  // namespace hora::internal
