// hora/types.h and hora/error.h.
#include <hora/error.h>
#include <hora/printable.h>
#include <hora/types.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <ostream>
#include <utility>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"

namespace hora {
using namespace internal;
namespace {

struct TypeFacts {
  std::string_view name;
  std::size_t size;
  bool is_floating_point = false;
};
constexpr std::array<TypeFacts, 13> kTypes{{{"float16", 2, true},
                                            {"bfloat16", 2, true},
                                            {"float32", 4, true},
                                            {"float64", 8, true},
                                            {"int32", 4},
                                            {"int64", 8},
                                            {"uint8", 1},
                                            {"int8", 1},
                                            {"int16", 2},
                                            {"bool", 1},
                                            {"uint16", 2},
                                            {"uint32", 4},
                                            {"uint64", 8}}};
constexpr std::array<std::string_view, 6> kReductions{"average", "sum",     "min",
                                                      "max",     "product", "adasum"};
constexpr std::array<std::string_view, 2> kDevices{"cpu", "cuda"};
constexpr std::array<std::string_view, 9> kErrors{
    "invalid_argument", "mismatch",  "duplicate_name", "invalid_setting", "shut_down",
    "out_of_memory",    "transport", "invalid_use",    "timeout"};

/// The row of an enumerator, which may have come from another rank; `unknown` where it is none.
template <class T, std::size_t N, class E>
constexpr T row_of(const std::array<T, N>& table, E value, T unknown) noexcept {
  static_assert(N == static_cast<std::size_t>(last_of<E>) + 1);
  return is_enumerator(value) ? table[static_cast<std::size_t>(value)] : unknown;
}

constexpr TypeFacts facts_of(DataType type) noexcept {
  return row_of(kTypes, type, {"unknown type", 0});
}

/// The last Error made on this thread. Without destructors: errors are made at a thread's end, too.
/// The address is compared, never followed: another thread may have destroyed the object.
struct LastError {
  const Error* made = nullptr;
  std::size_t length = 0;
  std::array<char, 1000> text;
};
thread_local LastError last_error;

}  // namespace

std::size_t size_of(DataType type) noexcept {
  return facts_of(type).size;
}
std::string_view name_of(DataType type) noexcept {
  return facts_of(type).name;
}
bool is_floating_point(DataType type) noexcept {
  return facts_of(type).is_floating_point;
}
std::string_view name_of(ReduceOp op) noexcept {
  return row_of<std::string_view>(kReductions, op, "unknown operation");
}
std::string_view name_of(DeviceKind kind) noexcept {
  return row_of<std::string_view>(kDevices, kind, "unknown device");
}
std::string_view name_of(ErrorCode code) noexcept {
  return row_of<std::string_view>(kErrors, code, "unknown error");
}

std::string to_string(ProcessSet set) {
  return std::to_string(set.number());
}
std::ostream& operator<<(std::ostream& stream, ProcessSet set) {
  return stream << set.number();
}

std::int64_t internal::elements_of(DataType type, std::span<const std::int64_t> shape) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::invalid_argument, why); };
  const std::size_t size = size_of(type);
  if (size == 0) {
    refuse(fmt::format("the data type number {} is none of hora's (see hora::DataType)",
                       static_cast<int>(type)));
  }
  bool empty = false;
  Checked bytes = size;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      refuse(fmt::format("the shape {} has the negative extent {}; every extent must be 0 or more",
                         shape, extent));
    }
    empty = empty || extent == 0;
    // Rows must be countable also where there are none.
    if (extent > 0) bytes = bytes * extent;
  }
  if (!bytes.at_most(kMaxBytes)) {
    refuse(
        fmt::format("the shape {} of {} has more than 2^48 bytes, extents of 0 left out, which "
                    "no process can address",
                    shape, name_of(type)));
  }
  return empty ? 0 : static_cast<std::int64_t>(bytes.value() / size);
}

std::int64_t ConstTensorView::elements() const {
  return elements_of(type, shape);
}
std::size_t ConstTensorView::bytes() const {
  return static_cast<std::size_t>(elements()) * size_of(type);
}
std::int64_t TensorView::elements() const {
  return elements_of(type, shape);
}
std::size_t TensorView::bytes() const {
  return static_cast<std::size_t>(elements()) * size_of(type);
}

Error::Error(ErrorCode code, const std::string& what, int rank, std::string tensor)
    : std::runtime_error(printable(what)), code_(code), rank_(rank), tensor_(std::move(tensor)) {
  const std::string_view said = this->what();
  last_error.made = this;
  last_error.length = said.copy(last_error.text.data(), last_error.text.size());
}

Error::~Error() {
  if (last_error.made == this) last_error.made = nullptr;
}

std::string internal::error_in_flight() {
  return last_error.made ? std::string(last_error.text.data(), last_error.length) : std::string();
}

}  // namespace hora
