// hora/types.h, hora/error.h and hora/printable.h; texts of messages.
#include "core/base/text.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <ostream>

#include "core/base/checked.h"
#include "core/base/diagnostics.h"

namespace hora {
using namespace internal;
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  ///< 0: no UTF-8 begins here
};

/// The first code point of `text`, well-formed as in RFC 3629: shortest form, no surrogates.
CodePoint first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80U) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0U ? 4 : lead >= 0xE0U ? 3 : 2;
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xC2U || lead > 0xF4U || text.size() < bytes) return {};
  std::uint32_t value = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!continues_character(text[i])) return {};
    value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return value < kLeast[bytes] || value > 0x10FFFF || surrogate ? CodePoint{}
                                                                : CodePoint{value, bytes};
}

/// Controls beyond ASCII's: C1, ends of lines, and changes of direction (Unicode's Bidi_Control).
bool is_control(std::uint32_t c) {
  return (c >= 0x80 && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

void append_byte(std::string& text, char c) {
  const auto byte = static_cast<unsigned char>(c);
  const std::size_t known = std::string_view("\n\r\t").find(c);
  if (byte >= 0x20U && byte < 0x7FU) {
    text += c;
  } else if (known != std::string_view::npos) {
    text.append("\\").append(1, "nrt"[known]);
  } else {
    text += fmt::format("\\x{:02x}", byte);
  }
}

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const CodePoint first = first_of(text);
    if (first.bytes <= 1) {
      append_byte(result, text.front());
    } else if (is_control(first.value)) {
      result += fmt::format("\\u{:04x}", first.value);
    } else {
      result += text.substr(0, first.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(first.bytes, 1));
  }
  return result;
}

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

/// `call`: "<kind>.<number from 0>".
std::string unnamed_text(std::string_view call) {
  const auto dot = call.rfind('.');
  const std::string kind = "the unnamed " + printable(call.substr(0, dot));
  const std::string_view number = dot == std::string_view::npos ? "0" : call.substr(dot + 1);
  return number == "0" ? kind : kind + " in slot " + printable(number);
}

}  // namespace

std::string printable(std::string_view text, std::size_t longest) {
  std::string result = escaped(text);
  if (result.size() <= longest) return result;
  constexpr std::size_t kNote = 48;  // room for the note
  const std::size_t kept = longest - kNote;
  std::size_t begin = kept - kept / 4;
  std::size_t end = result.size() - kept / 4;
  while (continues_character(result[begin])) --begin;
  while (end < result.size() && continues_character(result[end])) ++end;
  return result.replace(begin, end - begin,
                        fmt::format(" ... ({} bytes left out) ... ", end - begin));
}

std::string in_quotes(std::string_view text) {
  return '"' + printable(text, kLongestQuotation) + '"';
}

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

namespace internal {

std::string tensor_text(std::string_view name) {
  if (name.empty()) return "an unnamed tensor";
  if (name == kJoinName) return "join()";
  if (name == kAddSetName) return "add_process_set()";
  if (name == kRemoveSetName) return "remove_process_set()";
  if (name.starts_with(kUnnamedPrefix)) return unnamed_text(name.substr(kUnnamedPrefix.size()));
  return "tensor " + in_quotes(name);
}

std::string tensor_text(std::string_view name, ProcessSet set) {
  return tensor_text(name) + (set == kWorld ? "" : " of process set " + to_string(set));
}

std::string_view fitting(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && continues_character(text[most])) --most;
  return text.substr(0, most);
}

std::string ranks_text(std::span<const int> ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && std::int64_t{ranks[end]} == std::int64_t{ranks[end - 1]} + 1)
      ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i == 2) text += ", " + std::to_string(ranks[end - 1]);
    if (end - i > 2) text += "-" + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string named_ranks(std::span<const int> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks);
}

std::string ranks_have(std::span<const int> ranks) {
  return named_ranks(ranks) + (ranks.size() == 1 ? " has" : " have");
}

std::string seconds_text(std::chrono::nanoseconds length) {
  const auto tenths = std::max<std::int64_t>(length / std::chrono::milliseconds(100), 0);
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace internal
}  // namespace hora
