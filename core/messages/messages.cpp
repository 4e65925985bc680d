#include "core/messages/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>
#include <hora/printable.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>

#include "core/control_block/node_control_block.h"
#include "messages_generated.h"

namespace hora::internal {

std::string_view name_of(OperationKind kind) noexcept {
  constexpr std::array<std::string_view, 9> kNames{
      "allreduce",       "broadcast",          "barrier", "allgather", "alltoall", "reduce_scatter",
      "add_process_set", "remove_process_set", "join"};
  const auto number = static_cast<std::size_t>(kind);
  return number < kNames.size() ? kNames[number] : "unknown operation";
}

std::size_t Signature::bytes() const {
  if (kind == OperationKind::barrier || changes_sets(kind) || is_exchange(kind)) return 0;
  return static_cast<std::size_t>(elements_of(type, shape)) * size_of(type);
}

std::size_t Signature::row_bytes() const {
  const auto row = std::span(shape).subspan(shape.empty() ? 0 : 1);
  return static_cast<std::size_t>(elements_of(type, row)) * size_of(type);
}

std::string to_string(const Signature& signature) {
  std::string text(name_of(signature.kind));
  if (signature.kind == OperationKind::barrier || signature.kind == OperationKind::join)
    return text;
  if (!changes_sets(signature.kind)) text.append(" ").append(name_of(signature.type));
  std::vector<std::string> extents;
  for (const std::int64_t extent : signature.shape) {
    extents.push_back(extent == kAnyExtent ? "*" : std::to_string(extent));
  }
  text += fmt::format(" [{}]", fmt::join(extents, ", "));
  if (changes_sets(signature.kind)) return text;
  if (signature.kind == OperationKind::allreduce ||
      signature.kind == OperationKind::reduce_scatter) {
    text.append(" ").append(name_of(signature.op));
    if (signature.prescale != 1.0) text += fmt::format(" prescale {}", signature.prescale);
    if (signature.postscale != 1.0) text += fmt::format(" postscale {}", signature.postscale);
  } else if (signature.kind == OperationKind::broadcast) {
    text += fmt::format(" from rank {}", signature.root);
  }
  return text.append(" on ").append(name_of(signature.device));
}

namespace {

using flatbuffers::String;
using flatbuffers::Table;

/// Deep enough for every message; a hostile buffer cannot make the verifier recurse further.
constexpr int kMaxDepth = 8;
/// A table's first field, the offset of its layout.
constexpr std::size_t kLeastTableBytes = 4;

using Offset = flatbuffers::Offset<void>;
using Field = flatbuffers::voffset_t;
constexpr Field kFirstField = 4, kFieldStep = 2;

template <class T, class Table>
concept As = std::is_same_v<std::remove_const_t<T>, Table>;

/// The fields of each table, in the order of the schema.
struct TableFields {
  static auto of(As<Signature> auto& m) {
    return std::tie(m.kind, m.type, m.op, m.device, m.root, m.shape, m.prescale, m.postscale);
  }
  static auto of(As<ReportedSignature> auto& m) { return std::tie(m.signature, m.ranks); }
  static auto of(As<Report> auto& m) { return std::tie(m.name, m.values); }
  static auto of(As<Expiry> auto& m) { return std::tie(m.limit, m.left, m.is_of_call); }
  static auto of(As<Mail> auto& m) {
    return std::tie(m.kind, m.name, m.signature, m.location.window, m.location.offset, m.expiry);
  }
  static auto of(As<Presence> auto& m) {
    return std::tie(m.name, m.ready, m.missing, m.remarks, m.is_answer);
  }
  static auto of(As<Expiring> auto& m) { return std::tie(m.name, m.rank, m.expiry); }
  static auto of(As<Up> auto& m) {
    return std::tie(m.ready, m.reports, m.presence, m.departed, m.joined, m.last, m.expiring,
                    m.resized, m.disputed, m.after);
  }
  static auto of(As<NodeSum> auto& m) { return std::tie(m.id, m.last.rank, m.last.late, m.data); }
  static auto of(As<Assigned> auto& m) { return std::tie(m.name, m.id, m.locations, m.signature); }
  static auto of(As<Failed> auto& m) { return std::tie(m.name, m.text); }
  static auto of(As<Decision> auto& m) {
    return std::tie(m.retired, m.assigned, m.failed, m.run, m.departed, m.finished, m.all_joined,
                    m.last_joined, m.asked, m.resized, m.eager, m.after);
  }
  static auto of(As<JobEnd> auto& m) { return std::tie(m.code, m.rank, m.text, m.tensor); }
};

/// Elements of vectors that have the same bytes in messages.
template <class T>
constexpr bool kIsCopied =
    std::is_arithmetic_v<T> || std::is_same_v<T, Location> || std::is_same_v<T, Rounds>;

template <class T>
concept IsTime =
    std::is_same_v<T, std::chrono::milliseconds> || std::is_same_v<T, LastArrival::Time>;

/// Writes tables, each after its parts.
struct Encoder {
  flatbuffers::FlatBufferBuilder builder;

  template <class T>
  Offset table(const T& value) {
    const auto parts = std::apply([&](const auto&... each) { return std::tuple{part(each)...}; },
                                  TableFields::of(value));
    const auto start = builder.StartTable();
    Field at = kFirstField;
    const auto add = [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, Offset>) {
        builder.AddOffset(at, part);
      } else {
        builder.AddElement(at, part);
      }
      at += kFieldStep;
    };
    std::apply([&](const auto&... each) { (add(each), ...); }, parts);
    return builder.EndTable(start);
  }

 private:
  /// A field's value, or the offset of what is written for it; null where that is nothing.
  template <class T>
  auto part(const T& value) {
    if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
      return static_cast<std::uint8_t>(value);
    } else if constexpr (IsTime<T>) {
      return value.count();
    } else if constexpr (std::is_arithmetic_v<T>) {
      return value;
    } else {
      return table(value);
    }
  }
  Offset part(const std::string& text) { return builder.CreateString(text).Union(); }
  template <class T>
  Offset part(const std::optional<T>& value) {
    return value ? table(*value) : Offset();
  }
  template <class T>
  Offset part(const std::vector<T>& values) {
    if (values.empty()) return {};
    if constexpr (kIsCopied<T>) {
      return builder.CreateVectorOfStructs(values).Union();
    } else {
      std::vector<Offset> parts;
      for (const T& value : values) parts.push_back(part(value));
      return builder.CreateVector(parts).Union();
    }
  }
  Offset part(const std::vector<LastArrival>& values) {
    if (values.empty()) return {};
    const auto set = [&](std::size_t i, wire::LastArrival* last) {
      *last = {values[i].rank, values[i].late.count()};
    };
    return builder.CreateVectorOfStructs<wire::LastArrival>(values.size(), set).Union();
  }
};

constexpr std::size_t kMaxDimensions = 64;

/// Reads verified tables; remembers the first error that verification does not detect, and the
/// first value beyond the limits, where there are any. Nothing that encode() makes shares its
/// parts, so a message that says more than it has bytes is refused: a few kilobytes of offsets to
/// one vector could mean terabytes.
class Decoder {
 public:
  Decoder(std::size_t message_bytes, const MessageLimits* limits)
      : bytes_left_(message_bytes), limits_(limits) {}

  const std::string& problem() const { return problem_; }

  template <class T>
  void read(const Table& table, T& value) {
    Field at = kFirstField;
    const auto next = [&] { return std::exchange(at, static_cast<Field>(at + kFieldStep)); };
    std::apply([&](auto&... each) { (get(table, next(), each), ...); }, TableFields::of(value));
    check(value);
  }

 private:
  template <class T>
  void get(const Table& table, Field at, T& value) {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(table.GetField<std::uint8_t>(at, 0));
      if (!is_enumerator(value)) fail("unknown {} {}", word_for(value), static_cast<int>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = table.GetField<std::uint8_t>(at, 0) != 0;
    } else if constexpr (IsTime<T>) {
      value = T(table.GetField(at, value.count()));
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = table.GetField(at, value);
    } else if (const auto* const part = table.GetPointer<const Table*>(at)) {
      read(*part, value);
    }
  }
  void get(const Table& table, Field at, std::string& text) {
    if (const auto* const part = table.GetPointer<const String*>(at)) read(*part, text);
  }
  template <class T>
  void get(const Table& table, Field at, std::optional<T>& value) {
    if (const auto* const part = table.GetPointer<const Table*>(at)) read(*part, value.emplace());
  }
  template <class T>
  void get(const Table& table, Field at, std::vector<T>& values) {
    if constexpr (kIsCopied<T>) {
      values = copied<T>(table, at);
      for (const T& each : values) check(each);
    } else {
      using Part = std::conditional_t<std::is_same_v<T, std::string>, String, Table>;
      const auto* const parts =
          table.GetPointer<const flatbuffers::Vector<flatbuffers::Offset<Part>>*>(at);
      if (!parts || !charge(parts->size() * kLeastTableBytes)) return;
      for (const Part* const part : *parts) read(*part, values.emplace_back());
    }
  }
  void get(const Table& table, Field at, std::vector<LastArrival>& values) {
    for (const auto& last : copied<wire::LastArrival>(table, at)) {
      values.push_back({last.rank(), {}, LastArrival::Time(last.late())});
    }
  }

  void read(const String& text, std::string& value) {
    if (!charge(text.size())) return;
    value = text.str();
    if (value.find('\0') != std::string::npos) fail("a name or text with a zero byte");
  }

  template <class T>
  std::vector<T> copied(const Table& table, Field at) {
    const auto* const values = table.GetPointer<const flatbuffers::Vector<std::uint8_t>*>(at);
    if (!values || !charge(values->size() * sizeof(T))) return {};
    // Copied as bytes: the verifier does not see to the alignment of a vector's 8-byte elements.
    static_assert(std::endian::native == std::endian::little, "FlatBuffers' byte order");
    std::vector<T> result(values->size());
    if (!result.empty()) std::memcpy(result.data(), values->Data(), result.size() * sizeof(T));
    return result;
  }

  static const char* word_for(MailKind) { return "mail kind"; }
  static const char* word_for(OperationKind) { return "kind"; }
  static const char* word_for(DataType) { return "type"; }
  static const char* word_for(ReduceOp) { return "op"; }
  static const char* word_for(DeviceKind) { return "device"; }
  static const char* word_for(ErrorCode) { return "error code"; }

  void check(const auto&) {}
  void check(Id id) {
    if (limits_ && slot_of(id) >= limits_->id_capacity) {
      fail("id {}, of slot {} of {}", id, slot_of(id), limits_->id_capacity);
    }
  }
  void check(int rank) {
    if (limits_ && !std::ranges::binary_search(limits_->ranks, rank)) {
      fail("rank {}, which is not in the process set", rank);
    }
  }
  void check(const Report& report) {
    if (report.values.empty()) fail("report of {} holds no value", in_quotes(report.name));
  }
  void check(const Presence& presence) {
    const std::size_t remarks = presence.remarks.size();
    if (limits_ && remarks > 0 && remarks != presence.missing.size()) {
      fail("{} remarks on {} ranks", remarks, presence.missing.size());
    }
  }
  void check(const Expiry& expiry) {
    if (expiry.limit.count() < 0) fail("a time limit of {} ms", expiry.limit.count());
    if (expiry.left.count() < 0 || expiry.left > Expiry::kMostLeft) {
      fail("a tensor that expires in {} ms", expiry.left.count());
    }
  }
  void check(const Expiring& expiring) { check(expiring.rank); }
  void check(const LastArrival& last) {
    if (last.rank != -1) check(last.rank);
    if (limits_ && last.late.count() < 0) fail("a rank that is late by {} ns", last.late.count());
  }
  void check(const Rounds& rounds) { check(rounds.id); }
  void check(const NodeSum& sum) {
    check(sum.id);
    check(sum.last);
  }
  void check(const Up& up) {
    for (const LastArrival& last : up.last) check(last);
    if (limits_ && !up.last.empty() && up.last.size() != up.ready.size()) {
      fail("{} last ranks of {} ids", up.last.size(), up.ready.size());
    }
  }
  void check(const Assigned& assigned) {
    check(assigned.id);
    if (limits_ && assigned.locations.size() != limits_->locations) {
      fail("{} locations of {}, not {}", assigned.locations.size(), in_quotes(assigned.name),
           limits_->locations);
    }
  }
  void check(const Decision& decision) {
    if (decision.all_joined) check(decision.last_joined);
    std::set<std::string_view> names;
    std::set<int> slots;
    for (const Assigned& assigned : decision.assigned) {
      if (limits_ && !names.insert(assigned.name).second) {
        fail("two ids for {}", in_quotes(assigned.name));
      }
      if (limits_ && !slots.insert(slot_of(assigned.id)).second) {
        fail("id {} for two names", assigned.id);
      }
    }
  }
  void check(const JobEnd& end) {
    if (end.rank != -1) check(end.rank);
  }
  /// NaN is not equal to itself, so ranks could not agree on it.
  void check(const Signature& signature) {
    if (!std::isfinite(signature.prescale)) fail("prescale is no finite number");
    if (!std::isfinite(signature.postscale)) fail("postscale is no finite number");
    if (limits_) check_submission(signature);
  }
  /// That a user can submit it.
  void check_submission(const Signature& signature) {
    if (signature.kind == OperationKind::broadcast) check(signature.root);
    if (signature.kind == OperationKind::add_process_set) {
      for (const std::int64_t each : signature.shape) {
        if (!std::in_range<int>(each)) return fail("a set with rank {}", each);
        check(static_cast<int>(each));
      }
      return;
    }
    Shape shape = signature.shape;
    const bool differs = extents_may_differ(signature.kind);
    if (differs && (shape.empty() || shape.front() != kAnyExtent)) {
      return fail("an exchange whose first extent is given");
    }
    if (signature.kind == OperationKind::reduce_scatter && shape.empty()) {
      return fail("a scalar to scatter");
    }
    if (signature.kind == OperationKind::remove_process_set && shape.size() != 1) {
      return fail("a removal of no process set");
    }
    if (differs) shape.front() = 1;
    if (shape.size() > kMaxDimensions) return fail("{} dimensions", shape.size());
    try {
      elements_of(signature.type, shape);
    } catch (const Error& error) {
      fail("{}", error.what());
    }
  }

  bool charge(std::size_t bytes) {
    if (bytes > bytes_left_) {
      fail("a message says more than it has bytes: its parts share memory");
      bytes_left_ = 0;
      return false;
    }
    bytes_left_ -= bytes;
    return true;
  }

  template <class... Values>
  void fail(fmt::format_string<Values...> text, Values&&... values) {
    if (problem_.empty()) problem_ = fmt::format(text, std::forward<Values>(values)...);
  }

  std::size_t bytes_left_;
  const MessageLimits* limits_;  ///< null: none
  std::string problem_;
};

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Encoder encoder;
  // The alternatives of Message are those of wire::Body, whose first one is none.
  const auto type = static_cast<wire::Body>(message.index() + 1);
  const auto body = std::visit([&](const auto& m) { return encoder.table(m); }, message);
  encoder.builder.Finish(wire::CreateMessage(encoder.builder, type, body));
  const auto bytes = std::as_bytes(encoder.builder.GetBufferSpan());
  return {bytes.begin(), bytes.end()};
}

tl::expected<Message, std::string> decode(std::span<const std::byte> bytes,
                                          const MessageLimits* limits) {
  flatbuffers::Verifier verifier(
      reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), kMaxDepth,
      static_cast<flatbuffers::uoffset_t>(bytes.size() / kLeastTableBytes));
  if (!wire::VerifyMessageBuffer(verifier)) {
    return tl::unexpected(fmt::format("not a hora message ({} bytes)", bytes.size()));
  }
  const wire::Message* const message = wire::GetMessage(bytes.data());
  static const std::array<Message, std::variant_size_v<Message>> kKinds{Mail{}, Up{}, Decision{},
                                                                        JobEnd{}, NodeSum{}};
  const auto kind = static_cast<std::size_t>(message->body_type()) - 1;
  if (kind >= kKinds.size()) return tl::unexpected(std::string("a hora message of unknown kind"));
  Message result = kKinds[kind];
  Decoder decoder(bytes.size(), limits);
  const auto* const body = static_cast<const Table*>(message->body());
  std::visit([&](auto& value) { decoder.read(*body, value); }, result);
  if (!decoder.problem().empty()) return tl::unexpected(decoder.problem());
  return result;
}

MessageLimits message_limits(const Topology& topology, int id_capacity, std::size_t locations) {
  return {id_capacity, topology.ranks(), locations};
}

}  // namespace hora::internal
