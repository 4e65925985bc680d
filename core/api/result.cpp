#include <hora/error.h>
#include <hora/result.h>

#include <string>
#include <utility>

#include "core/api/result_memory.h"

namespace hora {
namespace {

const ResultMemory& held(const std::shared_ptr<ResultMemory>& memory) {
  if (!memory) throw Error(ErrorCode::invalid_use, "this hora::Result is empty");
  return *memory;
}

}  // namespace

Result::Result(std::shared_ptr<ResultMemory> memory) noexcept : memory_(std::move(memory)) {}

std::byte* Result::data() const {
  return held(memory_).data();
}
DataType Result::type() const {
  return held(memory_).type();
}
const Shape& Result::shape() const {
  return held(memory_).shape();
}
const std::vector<std::int64_t>& Result::rows() const {
  return held(memory_).rows();
}
TensorView Result::view() const {
  const ResultMemory& memory = held(memory_);
  return {memory.data(), memory.type(), memory.shape(), memory.device(), memory.stream()};
}

void Result::check_type(DataType asked) const {
  if (asked == type()) return;
  throw Error(ErrorCode::invalid_argument, "this hora::Result holds " +
                                               std::string(name_of(type())) + ", not " +
                                               std::string(name_of(asked)));
}

ResultHandle::ResultHandle(Handle handle, std::shared_ptr<ResultMemory> memory) noexcept
    : memory_(std::move(memory)), handle_(std::move(handle)) {}

Result ResultHandle::wait() {
  handle_.wait();
  memory_->collect();
  return Result(std::exchange(memory_, nullptr));
}

}  // namespace hora
